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

	"github.com/lockfs/lockfs/renew"
)

// DefaultCloseGrace is how long a request without patience waits for a lock
// whose holder has closed its file already: the kernel reports the last close
// 6 µs to 5 ms after close() returned (measured on Linux 6.18).
const DefaultCloseGrace = 20 * time.Millisecond

// Config configures a Manager.
type Config struct {
	// Backend is the lock service. Required.
	Backend Backend
	// Session describes this mount in the lock service.
	Session SessionInfo
	// Renew holds the timings of the session; its TTL is required.
	Renew renew.Config
	// AnswerTimeout is how long a request without patience waits for the lock
	// service to answer; 0 means an eighth of the TTL, as for a renewal.
	AnswerTimeout time.Duration
	// KeysPerSession is about how many locks a session gets before another one is opened.
	// Ending a session with 5,000 locks stalls every writer of the lock service for 0.03 to
	// 0.15 s. Renewing a session costs 0.05 % of a core. 0 means 5,000.
	KeysPerSession int
	// Keep is how long a lock stays with the mount after its last close, if its file is opened
	// again and again. 0 gives every lock back at its last close. A Request can say otherwise.
	Keep time.Duration
	// Delegate has directories delegated to the mount that nobody else uses, if the Backend can,
	// for as long as Keep says.
	Delegate bool
	// CloseGrace; 0 means DefaultCloseGrace.
	CloseGrace time.Duration
	// SlowWait is how long a request waits for another owner before the log and
	// Observe are told; 0 means that they are not.
	SlowWait time.Duration
	// Observe, if not nil, is told what happens. It is called in the path of
	// requests and at any time by several, and has to return at once.
	Observe func(Event)
	// Logger; nil means slog.Default().
	Logger *slog.Logger
}

// Manager is one mount's door to the locks of its volume.
type Manager struct {
	// Dependencies and constants.
	backend Backend
	cfg     Config
	log     *slog.Logger

	// accepting ends with Refuse, ctx with Close; wg counts the goroutines that
	// Close waits for.
	accepting context.Context
	refuse    context.CancelFunc
	ctx       context.Context
	cancel    context.CancelFunc
	wg        sync.WaitGroup

	// trouble has a capacity of 1.
	trouble chan struct{}

	waits      waits        // requests that wait for another owner
	unreleased atomic.Int64 // how many releases have failed since one succeeded
	seen       listing
	outage     outage

	// opening is held while a session is opened, so that a hundred waiting opens ask for
	// one session and not for a hundred.
	opening chan struct{}

	// LOCK ORDERING: opening, then mu. Nothing blocks under mu.
	mu       sync.Mutex
	slots    map[Key]*slot                // GUARDED_BY(mu)
	trees    int                          // GUARDED_BY(mu); how many of slots are of Tree keys
	dirs     map[string]*dir              // GUARDED_BY(mu)
	steps    int                          // GUARDED_BY(mu); how many requests were woken, and how much was looked at for them
	early    map[AcquisitionID]*overtaken // GUARDED_BY(mu); what overtook the service's answer, by the acquisition under way
	keeper   keeper
	dels     map[string]*delegation // GUARDED_BY(mu); by path; none is below another
	advisory *Advisory              // GUARDED_BY(mu); nil: programs keep their advisory locks to themselves
	sessions []*session             // GUARDED_BY(mu); in order of opening, until they are lost
	refusing bool                   // GUARDED_BY(mu); no more requests
	closed   bool                   // GUARDED_BY(mu)
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
	releasing bool // it is being given back to the service

	// See keeper.
	keep      time.Duration // how long it is kept when it is idle, if it may be
	keepable  bool
	asked     time.Time     // before it was granted
	recalled  bool          // it is given back at its last close
	turn      int           // how many owners had it before
	idle      *list.Element // in keeper.idle; nil: it has an owner
	told      bool          // Config.Observe knows that its owner has released it
	described Holder        // what describe has told the service

	// See delegation.
	below   *delegation // it has no entry of its own
	putting bool        // but one is being put
	tried   bool        // one was put, or may have been
	left    bool        // it is given back when that is known
	fencing int64       // its token; 0: that of its entry

	slot    *slot
	at      int   // its place in slot.locks, while it stands there
	waiting crowd // requests that wait for this lock
}

// New returns a Manager that has an open session. It fails with ErrUnavailable
// when the lock service does not answer before ctx ends, and with the
// inequality in the message when the timings of cfg.Renew do not add up.
func New(ctx context.Context, cfg Config) (*Manager, error) {
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
		slots:   make(map[Key]*slot),
		dirs:    make(map[string]*dir),
		early:   make(map[AcquisitionID]*overtaken),
		dels:    make(map[string]*delegation),
		keeper:  keeper{begun: make(chan struct{}, 1), keepable: make(map[AcquisitionID]*lock), pasts: make(map[Key]*past)},
	}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.accepting, m.refuse = context.WithCancel(m.ctx)
	s, err := m.session(ctx, nil)
	if err != nil {
		m.cancel()
		return nil, fmt.Errorf("open a lock session: %w", err)
	}
	m.done(s)
	m.wg.Go(m.retire)
	m.wg.Go(func() { m.backend.WatchBreaks(m.ctx, m.obey) })
	m.wg.Go(m.runKeeper)
	return m, nil
}

// Refuse fails new requests, and those that wait, with ErrClosed. What is held
// stays held: its holders can finish what they write.
func (m *Manager) Refuse() {
	m.mu.Lock()
	m.refusing = true
	m.wakeAll()
	advisory := m.advisory
	m.mu.Unlock()
	if advisory != nil {
		advisory.refuse()
	}
	m.releaseIdle(func(*lock) bool { return true })
	m.endDelegations()
	m.refuse()
}

// Close refuses requests, marks every lock as lost and ends the sessions in the lock
// service, and with them every lock. The caller has let its writes finish before. If the
// service cannot be told before ctx ends, the locks end with the session's TTL, and the
// error says so.
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
	m.mu.Unlock()

	m.cancel()
	// No write is issued any more before the service hears of the end.
	for _, s := range sessions {
		s.renewal.Close()
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

// State tells what the worst of the sessions is worth, for status reports.
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

// Trouble receives when a session's renewal fails for the first time: what
// was written under its locks should reach the volume before it is suspended.
func (m *Manager) Trouble() <-chan struct{} { return m.trouble }

func (m *Manager) sessionChanged(state renew.State, cause error) {
	m.observe(SessionChanged{State: state, Cause: cause})
	if state != renew.Held || cause == nil {
		return
	}
	select {
	case m.trouble <- struct{}{}:
	default: // whoever receives it will find this session as well
	}
}
