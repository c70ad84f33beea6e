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
	a.m.wg.Go(a.tend)
}

// changed makes tables with waiters, and private ones, read the service again.
func (a *Advisory) changed(key Key, rev int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if key != (Key{}) && t.key != key || t.local || !t.working && rev > 0 && rev <= t.rev {
			continue // it is known
		}
		t.doubted = t.doubted || t.private.row
		if t.private.row || len(t.requests) > 0 {
			t.stale = true
			t.ask()
		}
	}
}

// look reads all of the mount's tables at once, in case the watch hangs or somebody has deleted a
// row. If a wait may be part of a cycle, it reads all tables of the volume.
func (a *Advisory) look() {
	a.mu.Lock()
	standing := make(map[*AdvisoryTable]bool)
	var tables []Key
	cyclic := false
	for _, t := range a.tables {
		if t.local {
			continue
		}
		standing[t] = !t.working && t.value != nil
		tables = append(tables, t.key)
		cyclic = cyclic || slices.ContainsFunc(t.requests, a.cyclic)
	}
	a.mu.Unlock()
	if len(standing) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(a.m.ctx, a.m.cfg.AnswerTimeout)
	defer cancel()
	sent := time.Now()
	if cyclic {
		tables = nil
	}
	rows, err := a.service.AdvisoryRows(ctx, tables...)
	if err != nil {
		return // the session tells of a service that does not answer
	}
	a.compare(standing, rows, sent)
}

// compare makes the workers read the tables that differ from what is known. standing are those that
// had rows before the read.
func (a *Advisory) compare(standing map[*AdvisoryTable]bool, rows AdvisoryRows, sent time.Time) {
	files, err := rows.files(a.mount)
	if err != nil {
		return // the tables' workers tell
	}
	type row struct { // a mount's rows have the same name in all tables
		table Key
		name  string
	}
	changed := make(map[row]int64, len(rows.Rows))
	for _, r := range rows.Rows {
		changed[row{r.Table, r.Name}] = r.Changed
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.endCycles(files)
	for t, stood := range standing {
		if t.working || a.tables[t.key] != t {
			continue
		}
		if len(t.requests) > 0 {
			t.stale = true
			t.ask()
		}
		if rev, ok := changed[row{t.key, t.row}]; stood && (!ok || rev != t.rows[t.row]) {
			t.doubted = true
			t.ask()
		} else if t.private.row && files[t.key].rows {
			t.doubted = true
			t.ask()
		} else if stood && sent.After(t.private.heard) {
			t.private.heard = sent
		}
	}
}

// lookForCycle refuses requests of this mount that close a cycle of waits. It looks if a request of
// line may be part of one; line nil: any request of the table. A cycle is visible once its locks
// are published. So it is called when a request stands in line, and when another mount publishes
// its private table. A parked request cannot be refused: it is called again when that is back.
func (t *AdvisoryTable) lookForCycle(ctx context.Context, line []*advisoryRequest) error {
	t.a.mu.Lock() // nobody waits for an owner that has nothing
	cyclic := slices.ContainsFunc(line, t.a.cyclic) || line == nil && slices.ContainsFunc(t.requests, t.a.cyclic)
	t.a.mu.Unlock()
	if !cyclic {
		return nil
	}
	rows, err := t.a.service.AdvisoryRows(ctx)
	if err != nil {
		return nil // look does it later
	}
	tables, err := rows.files(t.a.mount)
	if err != nil {
		return retry.Refused(err)
	}
	t.a.mu.Lock()
	defer t.a.mu.Unlock()
	t.a.endCycles(tables)
	return nil
}

// endCycles refuses the requests of this mount that close a cycle of waits. mu is held.
func (a *Advisory) endCycles(tables map[Key]advisoryFile) {
	files := make([]advisory.File, 0, len(tables))
	for _, f := range tables {
		files = append(files, f.File)
	}
	waits := advisory.WaitsOf(files)
	for _, t := range a.tables {
		if t.local || t.private.row {
			continue
		}
		for _, r := range slices.Clone(t.requests) {
			if a.cyclic(r) && !r.parked && waits.Cycle(r.lock.Owner, r.id) {
				t.answer(r, ErrDeadlock)
				t.ask()
			}
		}
	}
}
