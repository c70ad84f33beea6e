package lockmgrtest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

var (
	_ lockmgr.AdvisoryBackend = (*Memory)(nil)
	_ lockmgr.AdvisorySession = (*memorySession)(nil)
)

// advisoryRow is a row of its session.
type advisoryRow struct {
	lockmgr.AdvisoryRow
	session *memorySession
}

// AdvisoryRows is lockmgr.AdvisoryBackend's.
func (m *Memory) AdvisoryRows(ctx context.Context, tables ...lockmgr.Key) (lockmgr.AdvisoryRows, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.answers(ctx); err != nil {
		return lockmgr.AdvisoryRows{}, err
	}
	rows := m.advisoryRows(tables...)
	m.rowsRead += len(rows.Rows)
	return rows, nil
}

// RowsRead is how many rows AdvisoryRows has returned so far.
func (m *Memory) RowsRead() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.rowsRead
}

// WatchAdvisory tells of any change.
func (m *Memory) WatchAdvisory(ctx context.Context, changed func(lockmgr.Key, int64)) {
	for {
		m.mu.Lock()
		c := m.changed
		m.mu.Unlock()
		changed(lockmgr.Key{}, 0)
		select {
		case <-c:
		case <-ctx.Done():
			return
		}
	}
}

// DeleteAdvisory deletes all rows of table behind their owners' backs.
func (m *Memory) DeleteAdvisory(table lockmgr.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.removeRows(func(r *advisoryRow) bool { return r.Table == table })
}

// PutAdvisory is lockmgr.AdvisorySession's.
func (s *memorySession) PutAdvisory(ctx context.Context, p lockmgr.AdvisoryPut) (lockmgr.AdvisoryRows, bool, error) {
	m := s.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.slow; d > 0 && len(p.Delete) > 0 {
		m.mu.Unlock()
		time.Sleep(d)
		m.mu.Lock()
	}
	if err := m.answers(ctx); err != nil {
		return lockmgr.AdvisoryRows{}, false, err
	}
	if s.ended() {
		return lockmgr.AdvisoryRows{}, false, lockmgr.ErrSessionLost
	}
	rows := m.advisoryRows(p.Table)
	stands := func(name string) int64 {
		i := slices.IndexFunc(rows.Rows, func(r lockmgr.AdvisoryRow) bool { return r.Name == name })
		if i < 0 {
			return 0
		}
		return rows.Rows[i].Changed
	}
	if p.Void {
		return rows, false, nil
	}
	for name, rev := range p.Stand {
		if stands(name) != rev {
			return rows, false, nil
		}
	}
	for _, r := range rows.Rows {
		if p.Since != lockmgr.AnyRevision && r.Changed > p.Since {
			return rows, false, nil
		}
	}
	m.rev++
	m.removeRows(func(r *advisoryRow) bool { return r.Table == p.Table && slices.Contains(p.Delete, r.Name) })
	for _, name := range slices.Sorted(maps.Keys(p.Put)) {
		i := slices.IndexFunc(m.rows, func(r *advisoryRow) bool { return r.Table == p.Table && r.Name == name })
		if i < 0 {
			i = len(m.rows)
			m.rows = append(m.rows, &advisoryRow{lockmgr.AdvisoryRow{Table: p.Table, Name: name, Created: m.rev}, s})
		}
		m.rows[i].Value, m.rows[i].Changed = p.Put[name], m.rev
	}
	m.wake()
	if m.losing != 0 {
		return lockmgr.AdvisoryRows{}, false, lockmgr.ErrUnavailable
	}
	return m.advisoryRows(p.Table), true, nil
}

// advisoryRows is called with m.mu held.
func (m *Memory) advisoryRows(tables ...lockmgr.Key) lockmgr.AdvisoryRows {
	rows := lockmgr.AdvisoryRows{Revision: m.rev}
	for _, r := range m.rows {
		if len(tables) == 0 || slices.Contains(tables, r.Table) {
			rows.Rows = append(rows.Rows, r.AdvisoryRow)
		}
	}
	return rows
}

// removeRows is called with m.mu held.
func (m *Memory) removeRows(which func(*advisoryRow) bool) {
	before := len(m.rows)
	if m.rows = slices.DeleteFunc(m.rows, which); len(m.rows) != before {
		m.wake()
	}
}
