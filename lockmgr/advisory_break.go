package lockmgr

import (
	"log/slog"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// An operator breaks all locks that a mount has in a table: its row, which excludes others, and the
// handles that rely on it. The row is deleted when the writes that were checked before have landed.

// obey is Manager.obey for a table.
func (a *Advisory) obey(b Break) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if t.key.String() == b.Path && t.sess != nil && t.sess.backend.ID() == b.Session {
			t.broken = append(t.broken, b)
			t.ask()
		}
	}
}

// noticeBreak takes the mount's locks if they were broken, and makes the next put delete its row.
func (t *AdvisoryTable) noticeBreak() {
	a := t.a
	a.mu.Lock()
	if t.sent != nil || t.recovering { // it is not known yet whether that put has changed the row
		a.mu.Unlock()
		return
	}
	i := slices.IndexFunc(t.broken, func(b Break) bool { return t.value != nil && b.Token == t.created })
	if i < 0 {
		t.broken = nil // by then others had the locks
		a.mu.Unlock()
		return
	}
	b := t.broken[i]
	t.broken = nil
	a.mu.Unlock()
	t.bereave(b.loss(), slog.String("break", b.ID.String()), slog.String("by", b.By), slog.String("reason", b.Reason), slog.Time("at", b.At))
	if t.awaitWrites(); a.m.ctx.Err() != nil {
		return // Close ends the session
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t.forget()
	t.vacates = true
}

// awaitWrites returns when the writes that were checked before have landed, or Manager.ctx ends.
func (t *AdvisoryTable) awaitWrites() {
	select {
	case <-time.After(renew.CheckToIssue + renew.WriteInFlight):
	case <-t.a.m.ctx.Done():
	}
}

// bereave tells the view, the log and the observer that all of the mount's locks in the table are
// lost.
func (t *AdvisoryTable) bereave(cause error, attrs ...any) {
	a := t.a
	a.mu.Lock()
	locks := t.mine.All()
	a.mu.Unlock()
	if len(locks) == 0 || a.m.ctx.Err() != nil {
		return
	}
	t.tell(a.OnLost, 0)
	a.m.log.Error("flock and fcntl locks lost; the files that are open return EIO",
		append([]any{slog.String("path", t.key.String()), slog.Int("locks", len(locks)), slog.Any("error", cause)}, attrs...)...)
	for _, l := range locks {
		a.m.observe(LockLost{Key: t.key, Holder: t.holder(l), Cause: cause})
	}
}

// tell calls a function of the view, which can take as long as the volume does. Tries wait for patience
// more than for the service.
func (t *AdvisoryTable) tell(view func(*AdvisoryTable), patience time.Duration) {
	a := t.a
	told := make(chan struct{})
	a.working.Go(func() { view(t); close(told) })
	tick := time.NewTicker(a.m.cfg.AnswerTimeout / 8)
	defer tick.Stop()
	for {
		select {
		case <-told:
			return
		case <-tick.C:
			a.mu.Lock()
			if a.refused {
				t.refuseAll()
			}
			t.refuseLate(ErrContended, patience)
			a.mu.Unlock()
		}
	}
}

// forget takes all locks from the mount's owners. mu is held.
func (t *AdvisoryTable) forget() {
	t.losses++
	for _, l := range t.mine.All() {
		t.clear(l.Owner, 0, advisory.EOF)
	}
}

// holder describes an owner of this mount.
func (t *AdvisoryTable) holder(l advisory.Lock) Holder {
	return Holder{Node: t.a.m.cfg.Session.Node, PID: l.PID, Comm: l.Comm, Since: l.Since}
}
