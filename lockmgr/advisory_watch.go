package lockmgr

import (
	"context"
	"slices"
	"time"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// begin watches the tables from the first request on.
func (a *Advisory) begin() {
	a.m.wg.Go(func() { a.service.WatchAdvisory(a.m.ctx, a.changed) })
	a.m.wg.Go(a.look)
}

// changed makes those who wait look again.
func (a *Advisory) changed(key Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if (key == Key{} || t.key == key) && len(t.requests) > 0 {
			t.stale = true
			t.ask()
		}
	}
}

// look reads all tables now and then, in case that the watch hangs, or that somebody deletes a
// row: one read for all.
func (a *Advisory) look() {
	tick := time.NewTicker(advisoryLook)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-a.m.ctx.Done():
			return
		}
		a.mu.Lock()
		standing := make(map[*AdvisoryTable]bool)
		for _, t := range a.tables {
			standing[t] = !t.working && !t.mine.Empty()
		}
		a.mu.Unlock()
		if len(standing) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(a.m.ctx, a.m.cfg.AnswerTimeout)
		rows, err := a.service.AdvisoryRows(ctx, Key{})
		cancel()
		if err != nil {
			continue // the session tells of a service that does not answer
		}
		a.compare(standing, rows)
	}
}

// compare makes the workers look at the tables that are not as they are known. standing are those
// that had rows before the read.
func (a *Advisory) compare(standing map[*AdvisoryTable]bool, rows AdvisoryRows) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for t, stood := range standing {
		if t.working || a.tables[t.key] != t {
			continue
		}
		if len(t.requests) > 0 {
			t.stale = true
			t.ask()
		}
		if r, ok := rows.find(t.row); stood && (!ok || r.Changed != t.rows[t.row]) {
			t.doubted = true
			t.ask()
		}
	}
}

// lookForCycle refuses the request of line that closes a cycle of waits.
func (t *AdvisoryTable) lookForCycle(ctx context.Context, line []*advisoryRequest) error {
	t.a.mu.Lock() // nobody waits for an owner that has nothing
	line = slices.DeleteFunc(slices.Clone(line), func(r *advisoryRequest) bool { return t.a.ranges[r.lock.Owner] == 0 })
	t.a.mu.Unlock()
	if len(line) == 0 {
		return nil
	}
	rows, err := t.a.service.AdvisoryRows(ctx, Key{})
	if err != nil {
		return nil // a cycle without an answer is one of waits that end with a signal
	}
	tables, err := rows.files()
	if err != nil {
		return retry.Refused(err)
	}
	files := make([]advisory.File, 0, len(tables))
	for _, f := range tables {
		files = append(files, f)
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	for _, r := range line {
		if !r.over && advisory.Cycle(files, r.id) {
			t.answer(r, ErrDeadlock)
			t.asks++
		}
	}
	return nil
}
