package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/renew"
)

// work does what there is to do for a table, until there is nothing.
func (t *AdvisoryTable) work() {
	a := t.a
	for {
		t.noticeLoss()
		t.noticeBreak()
		a.mu.Lock()
		asked := t.asks
		if a.refused {
			t.refuseAll()
		}
		if a.m.ctx.Err() != nil {
			t.working = false
			a.mu.Unlock()
			return
		}
		p, look := t.plan()
		look = look || t.doubted || t.unparked
		if look {
			t.stale, t.doubted = false, false
		}
		var err error
		switch {
		case t.sent != nil || t.recovering || look || p.commit:
			a.mu.Unlock()
			err = t.exchange(p, look)
			a.mu.Lock()
			if err == nil {
				t.retry = retry.Retrier{}
				a.mu.Unlock()
				continue
			}
			t.stale, t.doubted = t.stale || look, t.doubted || look
			t.refuseLate(err, 0)
			a.mu.Unlock()
			t.pause(err)
			continue
		default:
			t.grant(p)
			for _, r := range p.refused {
				t.answer(r, ErrContended)
			}
		}
		t.done = asked
		close(t.advanced)
		t.advanced = make(chan struct{})
		if t.asks > asked {
			a.mu.Unlock()
			continue
		}
		t.working = false
		if t.unused() {
			t.use(nil)
			delete(a.tables, t.key)
			t.unnote()
		}
		a.mu.Unlock()
		return
	}
}

// exchange sends the service what a plan needs. After an error the worker makes another plan.
func (t *AdvisoryTable) exchange(p advisoryPlan, look bool) error {
	m := t.a.m
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	if t.sess == nil && !look {
		s, err := m.session(ctx, nil)
		if err != nil {
			return err
		}
		t.a.mu.Lock()
		t.use(s)
		t.a.mu.Unlock()
		m.done(s)
		return nil // the next plan's rows name the session
	}
	sent := time.Now()
	switch {
	case t.recovering:
		return t.recover(ctx)
	case t.sent != nil:
		rows, _, err := t.putter().PutAdvisory(ctx, AdvisoryPut{Table: t.key, Void: true})
		if err != nil {
			return err
		}
		m.outage.note(sent, nil)
		// Its grants were told to nobody: the next plan repeats them, or takes them back.
		if p := *t.sent; rows.landed(p.put) {
			t.landed(p, rows)
		}
		t.sent = nil
		return t.learn(rows, sent)
	case look:
		rows, err := t.a.service.AdvisoryRows(ctx, t.key)
		m.outage.note(sent, err)
		if err != nil {
			return err
		}
		closed := t.closed
		if err := t.learn(rows, sent); err != nil {
			return err
		}
		t.a.mu.Lock()
		unparked := t.unparked
		t.unparked = false
		t.a.mu.Unlock()
		if unparked || closed && !t.closed {
			return t.lookForCycle(ctx, nil)
		}
		return nil
	}
	return t.commit(p)
}

// commit puts the rows of a plan. A flush before that takes none of the service's time to answer.
func (t *AdvisoryTable) commit(p advisoryPlan) error {
	if t.private.row && !p.private && t.a.OnShared != nil {
		t.flush()
	}
	m := t.a.m
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	sent := time.Now()
	if t.value != nil {
		p.put.Stand = map[string]int64{t.row: t.rows[t.row]}
	}
	rows, done, err := t.putter().PutAdvisory(ctx, p.put)
	m.outage.note(sent, err)
	switch {
	case errors.Is(err, ErrSessionLost), errors.Is(err, retry.ErrRefused):
		return err
	case err != nil:
		t.sent = &p
		return err
	case !done:
		return t.learn(rows, sent)
	}
	t.landed(p, rows)
	t.a.mu.Lock()
	t.grant(p)
	if len(p.line) > 0 {
		t.stale = true // the lock in its way may have gone before the watch could show that
	}
	t.a.mu.Unlock()
	if err := t.learn(rows, sent); err != nil {
		return err
	}
	return t.lookForCycle(ctx, p.line)
}

// flush calls OnShared, which takes as long as the volume does. Tries do not wait for the service
// meanwhile, so they have as much longer for its answer.
func (t *AdvisoryTable) flush() {
	began := time.Now()
	t.tell(t.a.OnShared, t.a.m.cfg.Renew.TTL)
	now := time.Now()
	latest := now.Add(t.a.m.answerTime())
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, r := range t.requests {
		if r.expires = r.expires.Add(now.Sub(began)); r.expires.After(latest) {
			r.expires = latest // it came meanwhile
		}
	}
}

func (t *AdvisoryTable) putter() AdvisorySession { return t.sess.backend.(AdvisorySession) }

// landed notes the rows that p has made.
func (t *AdvisoryTable) landed(p advisoryPlan, rows AdvisoryRows) {
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	created := t.created
	for name, value := range p.put.Put {
		r, _ := rows.find(name)
		t.rows[name] = r.Changed
		if name == t.row {
			t.value, t.created = value, r.Created
		}
	}
	for _, name := range p.put.Delete {
		delete(t.rows, name)
		if name == t.row {
			t.value = nil
		}
	}
	t.isPrivate(p.private)
	if t.value != nil && t.created != created {
		t.note() // before what it grants
	}
}

// grant gives the plan's requests their locks, which are in the mount's row by now. Since the plan
// was made, owners may have given up other locks, and callers may have gone. mu is held.
func (t *AdvisoryTable) grant(p advisoryPlan) {
	for _, r := range p.grants {
		if r.over {
			t.asks++ // the row names a lock that nobody wants any more: plan again
		} else {
			r.had = t.mine.Any(r.lock.Owner, r.lock.Start, r.lock.End)
			t.set(r.lock)
			t.relied.Store(t.sess)
			r.losses = t.losses
		}
		t.answer(r, nil)
		if r.had && !r.lock.Exclusive && len(t.requests) > 0 {
			t.asks++ // perhaps a downgrade: others can share it now
		}
	}
}

// learn takes in the table's present rows, which were asked for at sent. If a row of this mount is
// not as it was put, somebody has removed it, and its locks are lost.
func (t *AdvisoryTable) learn(rows AdvisoryRows, sent time.Time) error {
	rows.Rows = slices.DeleteFunc(rows.Rows, func(r AdvisoryRow) bool { return r.Table != t.key })
	files, err := rows.files(t.a.mount)
	if err != nil {
		return retry.Refused(err)
	}
	f := files[t.key]
	t.rev = rows.Revision
	t.held = slices.DeleteFunc(f.Held, func(l advisory.Lock) bool { return t.a.Mine(l.Owner) })
	t.line = f.Line
	t.a.mu.Lock() // also if what this mount has there is lost
	t.closed, t.private.others, t.private.heard = f.private, f.rows, sent
	t.a.mu.Unlock()
	stand := make(map[string]int64, len(rows.Rows))
	for _, r := range rows.Rows {
		stand[r.Name] = r.Changed
	}
	for name, changed := range t.rows {
		if rev, ok := stand[name]; ok && rev == changed {
			continue
		}
		if name == t.row {
			t.lost(errDeleted)
			t.vacate(rows)
			return nil
		}
		delete(t.rows, name)
	}
	if t.value == nil {
		t.vacate(rows)
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	if t.private.row { // its requests have no rows, and their places are this mount's
		return nil
	}
	for _, r := range t.requests {
		r.ticket = 0
	}
	for _, row := range rows.Rows {
		if r := t.named[row.Name]; r != nil {
			r.ticket = row.Created
			t.rows[r.id] = row.Changed
		}
	}
	return nil
}

// noticeLoss takes the mount's locks if its session is lost.
func (t *AdvisoryTable) noticeLoss() {
	if t.sess == nil || t.sess.renewal.State() != renew.Lost {
		return
	}
	t.lost(t.sess.loss())
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, r := range t.requests {
		r.ticket = 0
	}
	clear(t.rows)
	t.sent, t.recovering = nil, false
	t.use(nil)
	if t.mourned != nil {
		close(t.mourned)
		t.mourned = nil
	}
}

// lost takes all of the mount's locks in the table. Waiting requests begin again.
func (t *AdvisoryTable) lost(cause error) {
	relied := t.relied.Load() != nil // a program that is told may give up all
	t.bereave(cause)
	if relied { // the mount's row is in no way of its other owners
		t.awaitWrites()
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.forget()
	delete(t.rows, t.row)
	t.value, t.stale = nil, true
	t.isPrivate(false)
}

// vacate makes the next put delete the mount's row if it stands. Nothing here relies on it: somebody
// has written it by hand.
func (t *AdvisoryTable) vacate(rows AdvisoryRows) {
	r, ok := rows.find(t.row)
	if !ok || t.sess == nil {
		return
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.rows[t.row], t.value, t.created, t.vacates = r.Changed, r.Value, r.Created, true
}

// use makes the table have its rows on s. mu is held.
func (t *AdvisoryTable) use(s *session) {
	m := t.a.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if t.sess != nil {
		t.sess.holds--
	}
	if t.sess = s; s != nil {
		s.holds++
		t.row = "h-" + s.backend.ID()
		// The service may have been set back since the table was read, which has ended the former session.
		t.rev, t.held, t.line = 0, nil, nil
	}
	t.note()
}

// refuseAll ends all requests. mu is held.
func (t *AdvisoryTable) refuseAll() {
	for _, r := range slices.Clone(t.requests) {
		t.answer(r, ErrClosed)
	}
}

// refuseLate ends the tries that have waited long enough, and more, with err, and the requests without
// a caller. mu is held.
func (t *AdvisoryTable) refuseLate(err error, more time.Duration) {
	for _, r := range slices.Clone(t.requests) {
		switch {
		case r.over:
			t.answer(r, nil)
		case r.waits || !time.Now().After(r.expires.Add(more)):
		case r.probes && t.knows(r):
		case errors.Is(err, ErrUnavailable), errors.Is(err, ErrContended) && !r.probes:
			t.answer(r, err)
		default:
			t.answer(r, fmt.Errorf("%w: %w", ErrUnavailable, err))
		}
	}
}

// pause waits before the next attempt.
func (t *AdvisoryTable) pause(err error) {
	if errors.Is(err, ErrSessionLost) && t.sess != nil {
		select {
		case <-t.sess.renewal.Lost():
			return
		case <-time.After(t.a.m.cfg.AnswerTimeout):
		case <-t.a.m.ctx.Done():
			return
		}
	}
	_ = t.retry.Pause(t.a.m.ctx)
}
