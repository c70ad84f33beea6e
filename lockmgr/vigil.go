package lockmgr

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// vigil follows one Acquire, for the log and for Config.Observe.
type vigil struct {
	m     *Manager
	req   *Request
	began time.Time

	// LOCK ORDERING: after Manager.mu.
	mu    sync.Mutex
	id    AcquisitionID // GUARDED_BY(mu); names the request, and the entry that is put for it
	asked int           // GUARDED_BY(mu); how often the service was asked
	since time.Time     // GUARDED_BY(mu); when another owner was found in the way; zero if none was
	slow  *time.Timer   // GUARDED_BY(mu); nil once the request has ended
	told  bool          // GUARDED_BY(mu); that it waits long
}

func (m *Manager) follow(req *Request) *vigil {
	return &vigil{m: m, req: req, began: time.Now()}
}

// fresh returns a new id for each time that the service is asked: it may still have the
// entries of the last one. A request whose keys are taken in turn asks anew for each.
func (v *vigil) fresh(inTurn bool) AcquisitionID {
	v.mu.Lock()
	defer v.mu.Unlock()
	level := slog.LevelInfo
	if inTurn {
		level = slog.LevelDebug
	}
	if was := v.holder(); v.asked > 0 {
		v.id = NewAcquisitionID()
		v.log(level, "lock asked for anew", slog.String("was", was.AcquisitionID.Short()))
	} else {
		v.log(slog.LevelDebug, "lock asked for")
	}
	v.asked++
	return v.id
}

// contended notes that another owner is in the way.
func (v *vigil) contended() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.since.IsZero() {
		return
	}
	v.since = time.Now()
	v.m.waits.add(v)
	v.log(slog.LevelDebug, "lock is another owner's")
	if v.m.cfg.SlowWait > 0 {
		v.slow = time.AfterFunc(v.m.cfg.SlowWait, v.waitsLong)
	}
}

// end notes what became of the request.
func (v *vigil) end(err error) {
	v.mu.Lock()
	now := time.Now()
	e := RequestEnded{Mode: v.req.Mode, Joined: err == nil && v.asked == 0, Took: now.Sub(v.began), Err: err}
	if !v.since.IsZero() {
		e.Contended, e.Waited = true, now.Sub(v.since)
		v.m.waits.remove(v)
	}
	if v.slow != nil {
		v.slow.Stop()
		v.slow = nil
	}
	level := slog.LevelDebug
	if v.told {
		level = slog.LevelInfo
	}
	switch {
	case err != nil:
		v.log(level, "lock not granted", slog.Duration("took", e.Took), slog.Any("error", err))
	case e.Joined:
		v.log(level, "lock shared with its owner", slog.Duration("took", e.Took))
	default:
		v.log(level, "lock granted", slog.Duration("took", e.Took), slog.Duration("waited", e.Waited))
	}
	v.mu.Unlock()
	if errors.Is(err, ErrContended) {
		e.Contended = true // by one for whom it did not wait
	}
	v.m.observe(e)
}

// waitsLong tells of a wait that has lasted for SlowWait, and of the owner it waits for.
func (v *vigil) waitsLong() {
	m := v.m
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()

	v.mu.Lock()
	key, h := v.req.Keys[0], v.holder()
	v.mu.Unlock()
	var other Holder
	for _, k := range slices.Backward(v.req.Keys) { // the inode's is the last; an open by any name has it
		if other = m.inTheWay(k, h.AcquisitionID); !other.AcquisitionID.IsZero() {
			break
		}
	}

	v.mu.Lock()
	defer v.mu.Unlock()
	if v.slow == nil {
		return // it has ended meanwhile
	}
	v.told = true
	waited := time.Since(v.since)
	v.log(slog.LevelInfo, "lock waited for", slog.Duration("waited", waited), slog.String("for", other.String()))
	m.observe(RequestWaits{Key: key, Holder: h, For: other, Waited: waited})
}

// inTheWay finds an owner that keeps another from k.
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

// listing is the entries that conflict with a key, as the service had them last.
type listing struct {
	sync.Mutex // LOCK ORDERING: before Manager.mu
	key        Key
	at         time.Time
	entries    []Entry
}

// listed asks the service for the entries that conflict with k, but not twice within a
// second: in a line of thousands, many requests have waited long at the same time.
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

// holder describes who asks. v.mu is held.
func (v *vigil) holder() Holder {
	if v.id.IsZero() {
		v.id = NewAcquisitionID()
	}
	h := v.req.Holder
	h.AcquisitionID, h.Node = v.id, v.m.cfg.Session.Node
	return h
}

// log writes a line about the request. v.mu is held.
func (v *vigil) log(level slog.Level, msg string, attrs ...slog.Attr) {
	if v.m.log.Enabled(context.Background(), level) {
		v.m.log.LogAttrs(context.Background(), level, msg, append(logAttrs(v.req.Keys[0], v.holder()), attrs...)...)
	}
}
