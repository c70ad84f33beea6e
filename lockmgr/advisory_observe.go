package lockmgr

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// meets notes that another owner is in the way of a request. mu is held.
func (t *AdvisoryTable) meets(r *advisoryRequest) {
	if !r.met.IsZero() || r.parked {
		return
	}
	r.met = time.Now()
	t.watchWait(r)
}

// watchWait reports a request's wait when it has lasted for Config.SlowWait. mu is held.
func (t *AdvisoryTable) watchWait(r *advisoryRequest) {
	if m := t.a.m; r.waits && !r.told && m.cfg.SlowWait > 0 {
		r.slow = time.AfterFunc(m.cfg.SlowWait-time.Since(r.met), func() { t.waitsLong(r) })
	}
}

// ended reports a request's end.
func (t *AdvisoryTable) ended(r *advisoryRequest, err error) {
	a := t.a
	e := AdvisoryEnded{Err: err}
	a.mu.Lock()
	if r.slow != nil {
		r.slow.Stop()
		r.slow = nil
	}
	if !r.met.IsZero() {
		e.Contended, e.Waited = true, time.Since(r.met)
	}
	told := r.told
	a.mu.Unlock()
	if errors.As(err, new(*HandedOnError)) {
		return // it waits on
	}
	if told {
		t.log("flock or fcntl lock waited for no longer", r.lock, slog.Duration("waited", e.Waited), slog.Any("error", err))
	}
	a.m.observe(e)
}

// waitsLong reports a wait that has lasted for Config.SlowWait.
func (t *AdvisoryTable) waitsLong(r *advisoryRequest) {
	m := t.a.m
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	m.wg.Add(1)
	m.mu.Unlock()
	defer m.wg.Done()
	by := t.inTheWay(r.lock)
	t.a.mu.Lock()
	if r.told = r.slow != nil; !r.told {
		t.a.mu.Unlock()
		return // it has ended meanwhile
	}
	waited := time.Since(r.met)
	t.a.mu.Unlock()
	t.log("flock or fcntl lock waited for", r.lock, slog.Duration("waited", waited), slog.String("for", by.String()))
	m.observe(RequestWaits{Key: t.key, Holder: t.holder(r.lock), For: by, Waited: waited})
}

// inTheWay finds the holder of the lock that keeps an owner of this mount from l. It asks the service once a
// second at most: many may have waited long at the same time.
func (t *AdvisoryTable) inTheWay(l advisory.Lock) Holder {
	a := t.a
	a.mu.Lock()
	by, ok := t.mine.Conflict(l)
	ask := !ok && time.Since(a.listed) >= time.Second
	if ask {
		a.listed = time.Now()
	}
	a.mu.Unlock()
	switch {
	case ok:
		return t.holder(by)
	case !ask:
		return Holder{}
	}
	ctx, cancel := context.WithTimeout(a.m.ctx, a.m.cfg.AnswerTimeout)
	defer cancel()
	rows, err := a.service.AdvisoryRows(ctx, t.key)
	if err != nil {
		return Holder{}
	}
	entries, err := rows.Entries()
	if err != nil {
		return Holder{}
	}
	for _, e := range entries {
		other := advisory.Lock{Owner: advisory.Owner{Kind: e.Range.Kind}, Start: e.Range.Start, End: e.Range.End, Exclusive: e.Mode == Exclusive}
		if e.Held && (e.Holder.Kept || other.Conflicts(l)) {
			return e.Holder
		}
	}
	return Holder{}
}

func (t *AdvisoryTable) log(msg string, l advisory.Lock, attrs ...any) {
	t.a.m.log.Info(msg, append([]any{slog.String("path", t.key.String()), slog.Int("pid", l.PID), slog.String("command", l.Comm)}, attrs...)...)
}

// count returns how many locks this mount has, and how many of its requests wait for another's.
func (a *Advisory) count() (held, waiting int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		held += t.mine.Len()
		for _, r := range t.requests {
			if !r.met.IsZero() {
				waiting++
			}
		}
	}
	return held, waiting
}
