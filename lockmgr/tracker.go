package lockmgr

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// tracker follows one Acquire, for the log and for Config.Observe.
type tracker struct {
	m     *Manager
	req   *Request
	began time.Time
	kept  bool // it took a kept lock over; used by Acquire alone

	// LOCK ORDERING: after Manager.mu.
	mu    sync.Mutex
	id    AcquisitionID // GUARDED_BY(mu); of the request, and of the entry that it puts or shares
	was   AcquisitionID // GUARDED_BY(mu); the request's id before it shared an existing lock; zero: it shares none
	found bool          // GUARDED_BY(mu); id is that of an existing lock, which the request shares
	asked int           // GUARDED_BY(mu); how often the service was asked
	since time.Time     // GUARDED_BY(mu); when another owner was found in the way; zero: none was
	slow  *time.Timer   // GUARDED_BY(mu); nil after the request
	told  bool          // GUARDED_BY(mu); its long wait was told
}

func (m *Manager) follow(req *Request) *tracker {
	return &tracker{m: m, req: req, began: time.Now()}
}

// fresh returns a new id each time the service is asked: entries of the previous time may still be
// there.
func (t *tracker) fresh(inTurn bool) AcquisitionID {
	t.mu.Lock()
	defer t.mu.Unlock()
	level := slog.LevelInfo
	if inTurn {
		level = slog.LevelDebug
	}
	if was := t.holder(); t.asked > 0 || t.found {
		t.id, t.was = NewAcquisitionID(), AcquisitionID{}
		t.found, t.kept = false, false
		t.log(level, "lock asked for anew", slog.String("was", was.AcquisitionID.Short()))
	} else {
		t.log(slog.LevelDebug, "lock asked for")
	}
	t.asked++
	return t.id
}

// resumes gives the request the id of the entry by which it has waited before.
func (t *tracker) resumes(id AcquisitionID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.id, t.was, t.found, t.kept = id, AcquisitionID{}, false, false
	t.asked++
	t.log(slog.LevelDebug, "lock waited for again")
}

// byItself returns the holder of locks that the mount grants without the service.
func (t *tracker) byItself(s *session) Holder {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked > 0 || t.kept {
		t.id = NewAcquisitionID()
	}
	t.kept = true
	h := t.holder()
	h.Session, h.Since = s.backend.ID(), time.Now()
	return h
}

func (t *tracker) tookOver(l *lock) Holder {
	t.kept = true
	h := t.req.Holder
	h.AcquisitionID, h.Session, h.Node, h.Since = l.grant.AcquisitionID, l.sess.backend.ID(), t.m.cfg.Session.Node, l.since
	return h
}

// got notes the request's locks. If the service was not asked, the request takes the id of the
// first of them.
func (t *tracker) got(locks []*lock) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.asked == 0 && len(locks) > 0 {
		t.was, t.id, t.found = t.id, locks[0].grant.AcquisitionID, true
	}
}

func (t *tracker) contended() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.since.IsZero() {
		return
	}
	t.since = time.Now()
	t.m.waits.add(t)
	t.log(slog.LevelDebug, "lock is another owner's")
	if t.m.cfg.SlowWait > 0 {
		t.slow = time.AfterFunc(t.m.cfg.SlowWait, t.waitsLong)
	}
}

func (t *tracker) end(err error) {
	t.mu.Lock()
	now := time.Now()
	e := RequestEnded{Mode: t.req.Mode, Joined: err == nil && t.asked == 0 && !t.kept, Kept: err == nil && t.kept, Took: now.Sub(t.began), Err: err}
	if !t.since.IsZero() {
		e.Contended, e.Waited = true, now.Sub(t.since)
		t.m.waits.remove(t)
	}
	if t.slow != nil {
		t.slow.Stop()
		t.slow = nil
	}
	level := slog.LevelDebug
	if t.told && !errors.As(err, new(*HandedOnError)) { // a request that is handed on still waits: a crowd would log a line each
		level = slog.LevelInfo
	}
	took := []slog.Attr{slog.Duration("took", e.Took)}
	if !t.was.IsZero() {
		took = append(took, slog.String("was", t.was.Short()))
	}
	switch {
	case err != nil:
		t.log(level, "lock not granted", slog.Duration("took", e.Took), slog.Any("error", err))
	case e.Kept:
		t.log(level, "lock taken over from those that are kept", took...)
	case e.Joined:
		t.log(level, "lock shared with its owner", took...)
	default:
		t.log(level, "lock granted", slog.Duration("took", e.Took), slog.Duration("waited", e.Waited))
	}
	t.mu.Unlock()
	if errors.As(err, new(*HandedOnError)) {
		return // it goes on elsewhere
	}
	if errors.Is(err, ErrContended) {
		e.Contended = true // by an owner for which it did not wait
	}
	t.m.observe(e)
}

// waitsLong reports a wait that has lasted for SlowWait, and the owner it waits for.
func (t *tracker) waitsLong() {
	m := t.m
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()

	t.mu.Lock()
	key, h := t.req.Keys[0], t.holder()
	t.mu.Unlock()
	var other Holder
	for _, k := range slices.Backward(t.req.Keys) { // the inode's is the last; an open by any name has it
		if other = m.inTheWay(k, h.AcquisitionID); !other.AcquisitionID.IsZero() {
			break
		}
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	if t.slow == nil {
		return // it has ended meanwhile
	}
	t.told = true
	waited := time.Since(t.since)
	t.log(slog.LevelInfo, "lock waited for", slog.Duration("waited", waited), slog.String("for", other.String()))
	m.observe(RequestWaits{Key: key, Holder: h, For: other, Waited: waited})
}

func (m *Manager) inTheWay(k Key, wants AcquisitionID) Holder {
	if e, ok := m.ours(k); ok {
		return e.Holder
	}
	for _, e := range m.listed(k) {
		if e.Held && e.Holder.AcquisitionID != wants {
			return e.Holder
		}
	}
	return Holder{}
}

type listing struct {
	sync.Mutex // LOCK ORDERING: before Manager.mu
	key        Key
	at         time.Time
	entries    []Entry
}

// listed asks for the entries that conflict with k, at most once a second: thousands of requests
// in a line wait long at the same time.
func (m *Manager) listed(k Key) []Entry {
	l := &m.seen
	l.Lock()
	defer l.Unlock()
	if l.key == k && time.Since(l.at) < time.Second {
		return l.entries
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	entries, err := m.backend.Rivals(ctx, k)
	if err != nil {
		entries = nil
	}
	l.key, l.at, l.entries = k, time.Now(), entries
	return entries
}

func (t *tracker) holder() Holder {
	if t.id.IsZero() {
		t.id = NewAcquisitionID()
	}
	h := t.req.Holder
	h.AcquisitionID, h.Node = t.id, t.m.cfg.Session.Node
	return h
}

func (t *tracker) log(level slog.Level, msg string, attrs ...slog.Attr) {
	if t.m.log.Enabled(context.Background(), level) {
		t.m.log.LogAttrs(context.Background(), level, msg, append(logAttrs(t.req.Keys[0], t.holder()), attrs...)...)
	}
}
