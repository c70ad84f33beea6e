package lockmgr

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// AdvisoryTable has the advisory locks of one file. Check reports whether this mount's locks are good.
type AdvisoryTable struct {
	a      *Advisory
	key    Key
	local  bool                    // the service has nothing of it
	relied atomic.Pointer[session] // of the locks that this mount has; nil: it has none

	// GUARDED_BY(Advisory.mu)
	mine     advisory.Locks
	requests []*advisoryRequest
	named    map[string]*advisoryRequest // by id
	planned  []*advisoryRequest          // plan's copy: a crowd's is large
	working  bool
	users    int
	losses   int
	private  advisoryPrivate
	closed   bool          // another mount has the table to itself
	stale    bool          // the table may have changed since it was read
	doubted  bool          // the mount's row may have changed too, though nobody else should change it
	broken   []Break       // breaks that may concern the mount's locks
	unparked bool          // a request that was handed on is back, and may have closed a cycle
	vacates  bool          // the mount's row goes before anything else is put
	mourned  chan struct{} // closed when the loss of the session was told; nil: nobody waits for that

	recovering bool                // it is from a dead process's records, and was not read since
	bereft     bool                // its locks were lost before it was adopted
	record     uint64              // its number in the mount's records; 0: it has none
	records    map[lockName]uint64 // the numbers of its locks' records
	asks       int                 // how often the worker was asked to look at the table
	done       int                 // how many of asks the worker has done
	advanced   chan struct{}       // closed, and replaced, when done has grown

	// The worker's own: there is one at a time.
	sess    *session
	row     string           // the name of the mount's row
	rows    map[string]int64 // those of this mount that stand, and the revisions of their last puts
	value   []byte           // of the mount's row; nil: it does not stand. Changed under Advisory.mu
	created int64            // the revision of the mount's row. Changed under Advisory.mu too
	held    []advisory.Lock  // of other mounts
	line    []advisory.Waiter
	rev     int64         // at which held and line were so
	sent    *advisoryPlan // whose put was not answered
	retry   retry.Retrier
}

// Close ends the use of a table that Open has returned. Locks in it stay.
func (t *AdvisoryTable) Close() {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.users--
	t.ask()
}

// Lock gives an owner of this mount a lock, in place of what it has there. Without wait, it fails
// with ErrContended if another owner has a conflicting lock, or is first in line for one. A flock
// whose change of mode waits or is refused loses its former mode, as on Linux.
//
// had: the owner had some of the range when it got the lock, and relies on that. A caller that
// fails afterwards keeps the lock then, and else gives it up.
//
// Errors: ErrContended, ErrDeadlock, ErrTooMany, ErrUnavailable, ErrClosed, ErrSessionLost,
// *HandedOnError, ctx's.
func (t *AdvisoryTable) Lock(ctx context.Context, l advisory.Lock, wait bool) (had bool, err error) {
	return t.lock(ctx, newAdvisoryRequest(l, wait), AcquisitionID{}, func() {})
}

// LockAgain is Lock of a request that has waited and was handed on: it keeps its place. entered is
// called when it stands in line again.
func (t *AdvisoryTable) LockAgain(ctx context.Context, l advisory.Lock, at Resume, entered func()) (had bool, err error) {
	return t.lock(ctx, newAdvisoryRequest(l, true), at.ID, entered)
}

func (t *AdvisoryTable) lock(ctx context.Context, r *advisoryRequest, at AcquisitionID, entered func()) (had bool, err error) {
	a, l := t.a, r.lock
	defer func() { t.ended(r, err) }()
	r, given, err := t.enter(r, at)
	if err != nil {
		return false, err
	}
	entered()
	if err := t.answered(ctx, r, given); err != nil {
		return false, err
	}
	err = t.Await(ctx)
	a.mu.Lock()
	if err == nil && t.losses != r.losses {
		err = ErrSessionLost
	}
	a.mu.Unlock()
	// The caller does not know of a lock that was granted too late, so that is given up. If it had
	// some of it before, it relies on that: keep it. After a loss keep all: bereave tells the view
	// only of locks that are still there.
	if err != nil && !r.had && !errors.Is(err, ErrSessionLost) {
		t.TakeBack(l)
	}
	return r.had, err
}

// enter adds a request, or goes on with the one that was handed on under id at. given receives the
// answer.
func (t *AdvisoryTable) enter(r *advisoryRequest, at AcquisitionID) (_ *advisoryRequest, given <-chan error, err error) {
	a := t.a
	a.mu.Lock()
	defer a.mu.Unlock()
	was := t.parked(at)
	switch {
	case a.refused:
		return r, nil, ErrClosed
	case a.handing && was != nil:
		return r, nil, was.handedOn()
	case a.handing: // it has no place yet
		return r, nil, &HandedOnError{Resume{Since: r.lock.Since}}
	case was != nil && was.lock.Same(r.lock):
		r = was
		r.parked = false
		if !r.met.IsZero() {
			t.watchWait(r)
		}
		t.unparked = t.unparked || !t.local && !t.private.row && a.cyclic(r)
	default:
		if was != nil {
			was.forsake()
		}
		r.given, r.expires = make(chan error, 1), time.Now().Add(a.m.answerTime())
		t.requests = append(t.requests, r)
		t.named[r.id] = r
	}
	given = r.given
	t.private.used = time.Now()
	t.stale = true
	t.ask()
	return r, given, nil
}

// answered returns the answer to a request.
func (t *AdvisoryTable) answered(ctx context.Context, r *advisoryRequest, given <-chan error) error {
	select {
	case err := <-given:
		if r.stood.Load() && (errors.Is(err, ErrDeadlock) || errors.Is(err, ErrContended)) {
			t.leaves()
		}
		return err
	case <-ctx.Done():
	}
	t.a.mu.Lock()
	if r.over || r.given != given { // answered, or handed on, just in time
		t.a.mu.Unlock()
		return <-given
	}
	r.over = true
	t.a.mu.Unlock()
	t.leaves()
	return ctx.Err()
}

// leaves waits until a request that is over has left the line: nobody must find it there after its
// caller was answered.
func (t *AdvisoryTable) leaves() {
	t.a.mu.Lock()
	asked := t.ask()
	t.a.mu.Unlock()
	t.await(nil, asked)
}

// advisoryRequest is a lock that is asked for.
type advisoryRequest struct {
	lock   advisory.Lock
	waits  bool
	probes bool          // it asks what is in the way, and gets nothing
	id     string        // of its row
	waitID AcquisitionID // by which it is handed on, if it waits
	stood  atomic.Bool   // it has had a row, or may have

	// GUARDED_BY(Advisory.mu)
	expires time.Time      // when a request that does not wait stops waiting for the service's answer
	given   chan error     // receives the answer, or that it is handed on; capacity 1
	parked  bool           // it was handed on, and keeps its place until it comes again
	losses  int            // of the table, when it was granted
	had     bool           // its owner had some of it when it was granted
	ticket  int64          // of its row; 0: none stands
	dropped bool           // the flock that its owner had in another mode was given up for it
	met     time.Time      // when another owner was found in the way; zero: none was
	by      advisory.Owner // that was in the way last
	found   *advisory.Lock // what a probe has found
	late    *time.Timer    // ends the wait of a try for another mount to publish its locks
	slow    *time.Timer    // nil once it has ended, or if it does not wait
	told    bool           // the log says that it waits long
	over    bool           // it has its answer, or wants none any more
}

// rowOf returns the name of the row of a request that is no probe.
func rowOf(id AcquisitionID) string { return "w-" + id.String() }

func newAdvisoryRequest(l advisory.Lock, wait bool) *advisoryRequest {
	id := NewAcquisitionID()
	return &advisoryRequest{lock: l, waits: wait, id: rowOf(id), waitID: id}
}

// order is where a request stands among those of this mount.
func (r *advisoryRequest) order() int64 {
	if r.ticket == 0 {
		return math.MaxInt64
	}
	return r.ticket
}

// Unlock takes a range from an owner. It returns when others can have the range, after the answer
// time-out, or when cancel is closed. Errors: ErrTooMany, if what is left would be more locks than
// before, and too many; the owner keeps all.
func (t *AdvisoryTable) Unlock(cancel <-chan struct{}, o advisory.Owner, start, end uint64) error {
	return t.unlock(cancel, o, start, end, maxAdvisory)
}

// TakeBack unlocks a lock that its owner has just got. It always succeeds.
func (t *AdvisoryTable) TakeBack(l advisory.Lock) {
	_ = t.unlock(nil, l.Owner, l.Start, l.End, math.MaxInt)
}

func (t *AdvisoryTable) unlock(cancel <-chan struct{}, o advisory.Owner, start, end uint64, most int) error {
	a := t.a
	a.mu.Lock()
	if !t.has(o) {
		a.mu.Unlock()
		return nil
	}
	if n := t.mine.Len(); n >= most {
		left := t.mine
		if left.Clear(o, start, end); left.Len() > n {
			a.mu.Unlock()
			return ErrTooMany
		}
	}
	t.private.used = time.Now()
	t.clear(o, start, end)
	asked := t.ask()
	a.mu.Unlock()
	t.await(cancel, asked)
	return nil
}

// Test returns another owner's lock that conflicts with l. If another mount has the table to itself
// and does not publish its locks, by covers the whole file. Errors: ErrUnavailable, ErrClosed,
// *HandedOnError, ctx's.
func (t *AdvisoryTable) Test(ctx context.Context, l advisory.Lock) (by advisory.Lock, ok bool, err error) {
	r := &advisoryRequest{lock: l, probes: true, id: "p-" + uuid.NewString()}
	_, given, err := t.enter(r, AcquisitionID{})
	if err == nil {
		err = t.answered(ctx, r, given)
	}
	if err != nil || r.found == nil {
		return by, false, err
	}
	return *r.found, true, nil
}

// Key returns the key of the file's inode.
func (t *AdvisoryTable) Key() Key { return t.key }

// InUse reports whether somebody who has opened the table has not closed it yet.
func (t *AdvisoryTable) InUse() bool {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return t.users > 0
}

// Check returns nil if what this mount has in the table is good at this instant, or it has
// nothing. Errors: ErrSuspended, ErrSessionLost.
func (t *AdvisoryTable) Check() error {
	if s := t.relied.Load(); s != nil {
		return s.check()
	}
	return nil
}

// Await waits while Check says ErrSuspended. Errors: Check's, ctx's.
func (t *AdvisoryTable) Await(ctx context.Context) error {
	s := t.relied.Load()
	if s == nil {
		return nil
	}
	err := s.renewal.Await(ctx)
	if err == nil {
		return t.Check()
	}
	if now := s.check(); errors.Is(now, ErrSessionLost) {
		return now // even if the table has no locks of s any more
	}
	return errors.Join(ErrSuspended, err)
}

// Has reports whether an owner of this mount has any lock in the table.
func (t *AdvisoryTable) Has(o advisory.Owner) bool {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	return t.has(o)
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
		done, advanced := t.done >= asked, t.advanced
		t.a.mu.Unlock()
		if done {
			return
		}
		select {
		case <-advanced:
		case <-cancel:
			return
		case <-late.C:
			return
		case <-t.a.m.ctx.Done():
			return
		}
	}
}

// The methods below need a.mu.

// ask makes the worker look at the table. t.done reaches the result when it has.
func (t *AdvisoryTable) ask() int {
	t.asks++
	switch {
	case t.working || t.a.paused || t.a.m.ctx.Err() != nil:
	case t.decides():
		t.done = t.asks
	default:
		t.working = true
		t.a.working.Go(t.work)
	}
	return t.asks
}

func (t *AdvisoryTable) has(o advisory.Owner) bool { return t.mine.Any(o, 0, advisory.EOF) }

// set gives an owner a lock.
func (t *AdvisoryTable) set(l advisory.Lock) {
	t.change(func() { t.mine.Set(l) }, l.Owner, l.Start, l.End)
}

// clear takes a range from an owner.
func (t *AdvisoryTable) clear(o advisory.Owner, start, end uint64) {
	t.change(func() { t.mine.Clear(o, start, end) }, o, start, end)
}

// change changes what an owner has of a range.
func (t *AdvisoryTable) change(do func(), o advisory.Owner, start, end uint64) {
	had := t.has(o)
	defer t.noteLocks(o, start, end)()
	do()
	t.private.changed = true
	if has := t.has(o); has != had && o.Kind == advisory.Posix {
		n := t.a.ranges[o.ID] - 1
		if has {
			n += 2
		}
		if t.a.ranges[o.ID] = n; n == 0 {
			delete(t.a.ranges, o.ID)
		}
	}
	if t.mine.Empty() {
		t.relied.Store(nil)
	}
}

// answer ends a request.
func (t *AdvisoryTable) answer(r *advisoryRequest, err error) {
	if i := slices.Index(t.requests, r); i >= 0 {
		t.requests = slices.Delete(t.requests, i, i+1)
	}
	t.ends(r)
	if !r.over {
		r.over = true
		r.given <- err
	}
}

func (t *AdvisoryTable) ends(r *advisoryRequest) {
	delete(t.named, r.id)
	if r.late != nil {
		r.late.Stop()
	}
}
