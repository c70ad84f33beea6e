package lockmgr

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/renew"
)

// DefaultCloseGrace is how long a request without patience waits for a lock whose file is closed:
// RELEASE follows close() by 6 µs to 5 ms (measured on Linux 6.18), but by more than 20 ms where
// dozens of threads want a CPU. Where a copy of the descriptor stays open, the request is refused
// this much later.
const DefaultCloseGrace = 200 * time.Millisecond

// Config configures a Manager.
type Config struct {
	// Backend is the lock service. Required.
	Backend Backend
	// Session describes this mount in the lock service.
	Session SessionInfo
	// Renew has the timings of the session. Its TTL is required.
	Renew renew.Config
	// AnswerTimeout is how long a request without patience waits for an answer. Zero: TTL/8, as
	// for a renewal.
	AnswerTimeout time.Duration
	// KeysPerSession is about how many locks a session has before another is opened. Zero: 5,000,
	// whose end stalls the service's writers for 0.03 to 0.15 s.
	KeysPerSession int
	// Keep is how long the mount keeps the idle lock of a file that is opened again and again, and,
	// if the Backend can, a directory in which it locks many files. Zero: not at all. A Request can
	// override it.
	Keep time.Duration
	// CloseGrace; zero: DefaultCloseGrace.
	CloseGrace time.Duration
	// Record, if not nil, is where a next process finds what this one leaves when it dies.
	Record *journal.Part
	// SlowWait is how long a request waits before the log and Observe are told. Zero: never.
	SlowWait time.Duration
	// Observe, if not nil, is told each Event. It is called concurrently and in requests, and must
	// return at once.
	Observe func(Event)
	// Logger; nil: slog.Default().
	Logger *slog.Logger
}

// Manager acquires the locks of one mount.
type Manager struct {
	// Dependencies and constants.
	backend Backend
	cfg     Config
	log     *slog.Logger

	// accepting ends with Refuse, ctx with Close. Close waits for wg.
	accepting context.Context
	refuse    context.CancelFunc
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	trouble chan struct{}

	waits      waits        // requests that wait for another owner
	unreleased atomic.Int64 // releases failed since one succeeded
	seen       listing
	outage     outage

	// opening is held while a session is opened, so that a hundred waiting opens ask for one
	// session.
	opening chan struct{}

	// LOCK ORDERING: opening, then mu. Nothing blocks under mu.
	mu             sync.Mutex
	table          table                        // GUARDED_BY(mu)
	early          map[AcquisitionID]*overtaken // GUARDED_BY(mu); what was heard before the service's answer
	keeper         keeper
	dels           map[string]*delegation  // GUARDED_BY(mu); by path; none is below another
	moved          map[uint16]int64        // GUARDED_BY(mu); by PathHash: the last token of a directory that was locked without an entry
	advisory       *Advisory               // GUARDED_BY(mu); nil: advisory locks are not shared between mounts
	handed         *AdvisoryState          // GUARDED_BY(mu); for NewAdvisory
	handedSessions []*session              // GUARDED_BY(mu); of handed; nil: it is lost
	sessions       []*session              // GUARDED_BY(mu); in order of opening; no lost ones
	records        uint64                  // GUARDED_BY(mu); the number of the last one made
	died           bool                    // constant after Adopt: the former process has
	unheld         []*lock                 // GUARDED_BY(mu); adopted, and nobody's
	bereft         []*Hold                 // GUARDED_BY(mu); adopted, and lost
	begun          bool                    // GUARDED_BY(mu); its background work is
	surrendering   int                     // GUARDED_BY(mu); how many surrenders are under way
	left           map[AcquisitionID]*left // GUARDED_BY(mu); by id; see HandOn
	waitsEnd       context.Context         // GUARDED_BY(mu); ended by HandOn
	endWaits       context.CancelFunc      // GUARDED_BY(mu)
	keepsNothing   bool                    // GUARDED_BY(mu); nothing is kept or delegated any more
	refusing       bool                    // GUARDED_BY(mu); no more requests
	closed         bool                    // GUARDED_BY(mu)
}

// lock is one key granted to one owner of this mount, shared by its holds.
type lock struct {
	grant     Grant
	since     time.Time // when it was granted
	holder    Holder
	owner     Owner
	sess      *session
	holds     map[*Hold]struct{}
	contended bool // another mount was in the way
	releasing bool // it is being deleted from the service

	surrendering bool // it is releasing, but the last changes under it have not landed yet

	// See keeper.
	keep      time.Duration // how long it may be kept idle
	keepable  bool
	asked     time.Time     // when it was asked for
	recalled  bool          // it is released at its last close
	turn      int           // how many owners had it before
	idle      *list.Element // in keeper.idle; nil: it has an owner
	observed  bool          // Config.Observe was told of its release
	described Holder        // what describe has told the service

	// See delegation.
	below   *delegation // the delegation that covers it; it has no entry of its own
	putting bool        // an entry for it is being put
	left    bool        // to be released once putting is over
	fencing int64       // its token; 0: that of its entry

	// See Settle.
	unsettled bool // the token may be too small for the file that the name has
	changes   bool // an owner has it, or had it, to give the name to another file
	looked    bool // an owner has looked at the file
	told      bool // the token is large enough, and stays so; another owner has a larger one

	slot    *slot
	at      int   // its index in slot.locks, while in there
	waiting crowd // requests that wait for this lock
}

// New returns a Manager with an open session. Errors: ErrUnavailable if the service does not
// answer before ctx ends; the violated inequality of cfg.Renew's timings.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	m, err := newManager(cfg)
	if err != nil {
		return nil, err
	}
	s, err := m.session(ctx, nil)
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("open a lock session: %w", err)
	}
	m.done(s)
	m.beginWork()
	return m, nil
}

// beginWork begins the background work.
func (m *Manager) beginWork() {
	m.mu.Lock()
	m.begun = true
	m.mu.Unlock()
	m.wg.Go(m.retire)
	m.wg.Go(func() { m.backend.WatchBreaks(m.ctx, m.obey) })
	m.wg.Go(m.runKeeper)
}

func newManager(cfg Config) (*Manager, error) {
	if cfg.Backend == nil {
		return nil, errors.New("lockmgr: Config.Backend is required")
	}
	if err := cfg.Renew.Validate(); err != nil {
		return nil, err
	}
	if cfg.AnswerTimeout == 0 {
		cfg.AnswerTimeout = cfg.Renew.TTL / 8
	}
	if cfg.KeysPerSession == 0 {
		cfg.KeysPerSession = 5000
	}
	if cfg.CloseGrace == 0 {
		cfg.CloseGrace = DefaultCloseGrace
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Renew.Logger = cfg.Logger
	m := &Manager{
		backend: cfg.Backend,
		cfg:     cfg,
		log:     cfg.Logger,
		trouble: make(chan struct{}, 1),
		opening: make(chan struct{}, 1),
		table:   table{slots: make(map[Key]*slot), dirs: make(map[string]*dir)},
		early:   make(map[AcquisitionID]*overtaken),
		dels:    make(map[string]*delegation),
		left:    make(map[AcquisitionID]*left),
		moved:   make(map[uint16]int64),
		keeper:  keeper{begun: make(chan struct{}, 1), keepable: make(map[AcquisitionID]*lock), raised: make(map[*lock]struct{}), pasts: make(map[Key]*past)},
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.accepting, m.refuse = context.WithCancel(m.ctx)
	m.waitsEnd, m.endWaits = context.WithCancel(context.Background())
	return m, nil
}

// CloseGrace is Config.CloseGrace.
func (m *Manager) CloseGrace() time.Duration { return m.cfg.CloseGrace }

// Refuse fails new and waiting requests with ErrClosed. Locks stay held, so that writes can
// finish.
func (m *Manager) Refuse() {
	m.mu.Lock()
	m.refusing = true
	m.table.wakeAll()
	advisory := m.advisory
	m.mu.Unlock()
	if advisory != nil {
		advisory.refuse()
	}
	m.releaseAllIdle()
	m.endDelegations()
	m.refuse()
}

// Close refuses requests, and ends the sessions with all locks when the changes under way have landed.
// If these or the service take longer than ctx, Close fails, and the locks end with the TTL. Errors:
// ErrUnderWay.
func (m *Manager) Close(ctx context.Context) error {
	m.Refuse()
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return nil
	}
	m.closed = true
	sessions := slices.Clone(m.sessions)
	advisory := m.advisory
	holds := m.table.holds()
	m.mu.Unlock()

	m.cancel()
	// No write is issued any more when the service hears of the end.
	for _, s := range sessions {
		s.renewal.Close()
	}
	for h := range holds {
		if !h.landed(ctx) {
			return ErrUnderWay
		}
	}
	errs := make([]error, len(sessions))
	var closing sync.WaitGroup
	for i, s := range sessions {
		closing.Go(func() {
			if err := s.backend.Close(ctx); err != nil {
				errs[i] = fmt.Errorf("end lock session %s (its locks end by themselves within %v): %w",
					s.backend.ID(), s.backend.TTL(), err)
			}
		})
	}
	closing.Wait()
	if advisory != nil {
		advisory.close()
	}
	m.wg.Wait()
	return errors.Join(errs...)
}

// State returns the worst state of the sessions, for status reports.
func (m *Manager) State() renew.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.sessions) == 0 {
		return renew.Lost
	}
	worst := renew.Held
	for _, s := range m.sessions {
		worst = max(worst, s.renewal.State())
	}
	return worst
}

// Trouble receives when a session's renewal first fails: what was written should reach the volume
// now.
func (m *Manager) Trouble() <-chan struct{} { return m.trouble }

func (m *Manager) sessionChanged(state renew.State, cause error) {
	m.observe(SessionChanged{State: state, Cause: cause})
	if state != renew.Held || cause == nil {
		return
	}
	select {
	case m.trouble <- struct{}{}:
	default: // one is pending: its receiver finds this session too
	}
}
