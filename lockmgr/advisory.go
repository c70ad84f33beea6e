package lockmgr

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Advisory has the flock(2) and fcntl(2) locks of one mount. A lock is granted when the mount's
// row in the file's table says so, and no other row was put since the table was read. So of two
// mounts that want what conflicts, one finds its knowledge out of date, and reads again.
//
// A table is worked on by one goroutine at a time, as long as there is something to do. Requests
// wait without one. Of those that wait only those stand in line in the service that are in no
// other's way on this mount, and those whose owner may be part of a cycle.
type Advisory struct {
	m       *Manager
	service AdvisoryBackend
	mount   string // of all owners here
	AdvisoryConfig

	// LOCK ORDERING: mu, then Manager.mu. Nothing blocks under mu.
	mu      sync.Mutex
	tables  map[Key]*AdvisoryTable // GUARDED_BY(mu); those that have anything
	ranges  map[advisory.Owner]int // GUARDED_BY(mu); in how many tables an owner has ranges
	refused bool                   // GUARDED_BY(mu); no more requests
	tickets int64                  // GUARDED_BY(mu); of requests that waited in local tables
	listed  time.Time              // GUARDED_BY(mu); when the service was last asked who is in the way, for the log
	gens    uint64                 // GUARDED_BY(mu); of private tables
	began   sync.Once              // watching
	tended  chan struct{}          // receives when a table has become private; capacity 1
	working sync.WaitGroup         // Add is GUARDED_BY(mu)
}

// AdvisoryTable has the advisory locks of one file. It tells whether what this mount has there
// is good.
type AdvisoryTable struct {
	a      *Advisory
	key    Key
	local  bool                    // the service has nothing of it
	relied atomic.Pointer[session] // of the locks that this mount has; nil: it has none

	// GUARDED_BY(Advisory.mu)
	mine     advisory.Locks
	requests []*advisoryRequest
	working  bool
	users    int
	losses   int
	private  advisoryPrivate
	closed   bool          // another mount has the table to itself
	stale    bool          // the table may have changed since it was read
	doubted  bool          // so may the mount's row, which nobody else should change
	broken   []Break       // that may be of what the mount has
	vacates  bool          // the mount's row goes before anything else is put
	asks     int           // how often somebody wanted something
	done     int           // of these, those that were looked at
	settled  chan struct{} // closed, and replaced, when done has grown

	// The worker's own: there is one at a time.
	sess    *session
	row     string           // the name of the mount's row
	rows    map[string]int64 // those of this mount that stand, and the revisions of their last puts
	value   []byte           // of the mount's row; nil: it does not stand
	created int64            // the revision of the mount's row
	held    []advisory.Lock  // of other mounts
	line    []advisory.Waiter
	rev     int64         // at which that was so
	sent    *advisoryPlan // whose put was not answered
	retry   retry.Retrier
}

// advisoryRequest is a lock that is asked for.
type advisoryRequest struct {
	lock    advisory.Lock
	waits   bool
	probes  bool       // it asks what is in the way, and gets nothing
	given   chan error // receives the answer; capacity 1
	id      string     // of its row
	expires time.Time  // when a request that does not wait gives the service up

	// GUARDED_BY(Advisory.mu)
	losses  int            // of the table, when it was granted
	had     bool           // its owner had some of it when it was granted
	ticket  int64          // of its row; 0: none stands
	dropped bool           // the flock that its owner had in another mode was given up for it
	met     time.Time      // when another owner was found in the way; zero: none was
	found   *advisory.Lock // what a probe has found
	late    *time.Timer    // of a try that another mount has to answer
	slow    *time.Timer    // nil once it has ended, or if it does not wait
	told    bool           // that it waits long
	over    bool           // it has its answer, or wants none any more
}

const (
	maxAdvisory  = 4096 // bounds the locks of one mount on one file, and so the size of its row
	maxStanding  = 16   // bounds the requests of one mount that stand in line for one file
	maxDeleted   = 64   // rows, in one put
	advisoryLook = 4 * time.Second
)

// ErrTooMany: one mount has as many advisory locks on one file as there can be.
var ErrTooMany = errors.New("too many advisory locks on one file")

// AdvisoryConfig is what a view does for its advisory locks.
type AdvisoryConfig struct {
	// OnLost is called for a table whose locks were lost, before any other lock there is granted
	// to this mount.
	OnLost func(*AdvisoryTable)
	// OnShared is called before others can know what this mount has in a table that was private
	// so far. What was written under its locks is on the volume when it returns. nil: nothing is
	// to be done.
	OnShared func(*AdvisoryTable)
}

// NewAdvisory makes the Manager keep advisory locks. It is called before requests are made.
// Errors: the lock service cannot keep them.
func (m *Manager) NewAdvisory(cfg AdvisoryConfig) (*Advisory, error) {
	service, ok := m.backend.(AdvisoryBackend)
	if !ok {
		return nil, errors.New("lockmgr: this lock service does not keep flock and fcntl locks")
	}
	a := &Advisory{
		m: m, service: service, mount: uuid.NewString(), AdvisoryConfig: cfg, tended: make(chan struct{}, 1),
		tables: make(map[Key]*AdvisoryTable), ranges: make(map[advisory.Owner]int),
	}
	m.mu.Lock()
	m.advisory = a
	m.mu.Unlock()
	return a, nil
}

// Owner names an owner of this mount.
func (a *Advisory) Owner(kind advisory.Kind, id uint64) advisory.Owner {
	return advisory.Owner{Mount: a.mount, Kind: kind, ID: id}
}

// Open returns the table of a file, which is the same until all that was opened is closed. keep is
// how long it stays private without locks, 0: it is never private; nil: as Config.Keep says.
func (a *Advisory) Open(key Key, keep *time.Duration) *AdvisoryTable {
	if keep == nil {
		keep = &a.m.cfg.Keep
	}
	return a.open(key, false, *keep)
}

func (a *Advisory) open(key Key, local bool, keep time.Duration) *AdvisoryTable {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.refused {
		a.began.Do(a.begin)
	}
	t := a.tables[key]
	if t == nil {
		t = &AdvisoryTable{a: a, key: key, local: local, settled: make(chan struct{}), rows: make(map[string]int64)}
		a.tables[key] = t
	}
	t.private.keep = keep
	t.users++
	return t
}

// Close ends the use of what Open has returned. Locks that were not given up stay.
func (t *AdvisoryTable) Close() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.users--
	t.ask()
}

// Lock gives an owner of this mount a lock, in place of what it has there. Unless it waits, it
// fails with ErrContended if another has a lock that conflicts, or is first in line for one. A
// flock that is refused, or waits, is lost in its former mode, as on Linux.
//
// Errors: ErrContended, ErrDeadlock, ErrTooMany, ErrUnavailable, ErrClosed, ErrSessionLost, ctx's.
func (t *AdvisoryTable) Lock(ctx context.Context, l advisory.Lock, wait bool) (err error) {
	a := t.a
	r := &advisoryRequest{lock: l, waits: wait, id: "w-" + uuid.NewString()}
	defer func() { t.ended(r, err) }()
	if err := t.answered(ctx, r); err != nil {
		return err
	}
	err = t.Await(ctx)
	a.mu.Lock()
	if err == nil && t.losses != r.losses {
		err = ErrSessionLost
	}
	a.mu.Unlock()
	// Its owner does not know that it has it. But what it had before it believes that it has.
	if err != nil && (!r.had || errors.Is(err, ErrSessionLost)) {
		t.Unlock(nil, l.Owner, l.Start, l.End)
	}
	return err
}

// answered makes a request, and returns its answer.
func (t *AdvisoryTable) answered(ctx context.Context, r *advisoryRequest) error {
	a := t.a
	r.given, r.expires = make(chan error, 1), time.Now().Add(a.m.answerTime())
	a.mu.Lock()
	if a.refused {
		a.mu.Unlock()
		return ErrClosed
	}
	t.requests = append(t.requests, r)
	t.private.used = time.Now()
	t.stale = true
	t.ask()
	a.mu.Unlock()
	select {
	case err := <-r.given:
		return err
	case <-ctx.Done():
	}
	a.mu.Lock()
	granted := r.over
	r.over = true
	asked := t.ask()
	a.mu.Unlock()
	if granted {
		return <-r.given // just in time
	}
	// Nobody must find it in line once the caller goes on.
	t.await(nil, asked)
	return ctx.Err()
}

// Unlock takes from an owner what it has of a range. It returns when others can have it: the
// service knows, or has not answered for a while, or cancel is closed.
func (t *AdvisoryTable) Unlock(cancel <-chan struct{}, o advisory.Owner, start, end uint64) {
	a := t.a
	a.mu.Lock()
	if len(t.mine.Of(o)) == 0 {
		a.mu.Unlock()
		return
	}
	t.private.used = time.Now()
	t.change(func() { t.mine.Clear(o, start, end) }, o)
	asked := t.ask()
	a.mu.Unlock()
	t.await(cancel, asked)
}

// Test returns a lock that another owner has and that conflicts with l. If another mount has the
// table to itself and does not say what it has, that is all of the file. Errors: ErrUnavailable,
// ErrClosed, ctx's.
func (t *AdvisoryTable) Test(ctx context.Context, l advisory.Lock) (by advisory.Lock, ok bool, err error) {
	r := &advisoryRequest{lock: l, probes: true, id: "p-" + uuid.NewString()}
	if err := t.answered(ctx, r); err != nil || r.found == nil {
		return by, false, err
	}
	return *r.found, true, nil
}

// Key returns the key of the file's inode.
func (t *AdvisoryTable) Key() Key { return t.key }

// Mine reports whether an owner is of this mount.
func (a *Advisory) Mine(o advisory.Owner) bool { return o.Mount == a.mount }

// Check returns nil if what this mount has in the table is good at this instant, or it has
// nothing. Errors: ErrSuspended, ErrSessionLost.
func (t *AdvisoryTable) Check() error {
	s := t.relied.Load()
	if s == nil || s.renewal.Valid() {
		return nil
	}
	select {
	case <-s.renewal.Lost():
		return s.loss()
	default:
		return ErrSuspended
	}
}

// Await waits while Check says ErrSuspended.
func (t *AdvisoryTable) Await(ctx context.Context) error {
	if s := t.relied.Load(); s != nil {
		if err := s.renewal.Await(ctx); err != nil {
			return errors.Join(t.Check(), err)
		}
	}
	return t.Check()
}

// Has reports whether an owner of this mount has any lock in the table.
func (t *AdvisoryTable) Has(o advisory.Owner) bool {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return len(t.mine.Of(o)) > 0
}

// Troubled is Hold.Troubled for the locks of this mount.
func (t *AdvisoryTable) Troubled() bool {
	s := t.relied.Load()
	return s != nil && s.renewal.Troubled()
}

// await returns when the worker has done what was asked, or after the answer time-out.
func (t *AdvisoryTable) await(cancel <-chan struct{}, asked int) {
	late := time.NewTimer(t.a.m.answerTime())
	defer late.Stop()
	for {
		t.a.mu.Lock()
		done, settled := t.done >= asked, t.settled
		t.a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-settled:
		case <-cancel:
			return
		case <-late.C:
			return
		case <-t.a.m.ctx.Done():
			return
		}
	}
}

// refuse ends all requests, and refuses new ones.
func (a *Advisory) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = true
	for _, t := range a.tables {
		t.ask()
	}
}

// close waits until nothing is under way, once Manager.ctx has ended.
func (a *Advisory) close() {
	a.mu.Lock() // nobody begins after this
	tables := len(a.tables)
	a.mu.Unlock()
	if tables > 0 {
		a.working.Wait()
	}
}

// lose makes the tables that rely on s know that it is lost.
func (a *Advisory) lose(s *session) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if t.relied.Load() == s || t.private.row && t.sess == s {
			t.ask()
		}
	}
}

// The methods below need mu.

// ask makes the worker look at the table, and returns what t.done is afterwards at least.
func (t *AdvisoryTable) ask() int {
	t.asks++
	switch {
	case t.working || t.a.m.ctx.Err() != nil:
	case t.decides():
		t.done = t.asks
	default:
		t.working = true
		t.a.working.Go(t.work)
	}
	return t.asks
}

// change changes what an owner has.
func (t *AdvisoryTable) change(do func(), o advisory.Owner) {
	had := len(t.mine.Of(o)) > 0
	do()
	t.private.changed = true
	if has := len(t.mine.Of(o)) > 0; has != had && o.Kind == advisory.Posix {
		n := t.a.ranges[o] - 1
		if has {
			n += 2
		}
		if t.a.ranges[o] = n; n == 0 {
			delete(t.a.ranges, o)
		}
	}
	if t.mine.Empty() {
		t.relied.Store(nil)
	}
}

// answer ends a request.
func (t *AdvisoryTable) answer(r *advisoryRequest, err error) {
	t.requests = slices.DeleteFunc(t.requests, func(o *advisoryRequest) bool { return o == r })
	if r.late != nil {
		r.late.Stop()
	}
	if !r.over {
		r.over = true
		r.given <- err
	}
}

// order is where a request stands among those of this mount.
func (r *advisoryRequest) order() int64 {
	if r.ticket == 0 {
		return math.MaxInt64
	}
	return r.ticket
}
