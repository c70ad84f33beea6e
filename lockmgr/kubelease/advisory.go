package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

var (
	_ lockmgr.AdvisoryBackend = (*Backend)(nil)
	_ lockmgr.AdvisorySession = (*Session)(nil)
)

// row is a row of a table of advisory locks: a Lease has all rows of a file.
type row struct {
	Name    string `json:"name"`
	Session string `json:"session"`
	Value   string `json:"value"`
	// Created and Changed are resourceVersions. The write that puts the row cannot know its own:
	// the next one fills it in.
	Created int64 `json:"created,omitempty"`
	Changed int64 `json:"changed,omitempty"`
}

func (o *object) readRows() error {
	text := o.lease.Annotations[noteRows]
	if text == "" {
		return nil
	}
	if err := json.Unmarshal([]byte(text), &o.rows); err != nil {
		return fmt.Errorf("rows of %s: %w", o.name, err)
	}
	for i := range o.rows {
		r := &o.rows[i]
		if r.Created == 0 {
			r.Created = o.rev
		}
		if r.Changed == 0 {
			r.Changed = o.rev
		}
	}
	return nil
}

// tableKey is the table that o is.
func (o *object) tableKey() (lockmgr.Key, error) { return keyOf(o.kind, o.lease.Annotations[noteKey]) }

// livingRows returns the rows of o, which may be nil, whose sessions live.
func (s *state) livingRows(o *object) []row {
	if o == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(o.rows), func(r row) bool { return s.ended(r.Session, r.Changed) })
}

// tableLease is the Lease that o, or nil if there is none, becomes with rows by a write of that id.
func (l layout) tableLease(o *object, table lockmgr.Key, rows []row, id string) (*coordinationv1.Lease, error) {
	text, err := json.Marshal(rows)
	if err != nil {
		return nil, fmt.Errorf("kubelease: rows: %w", err)
	}
	lease := l.newLease(l.table(table), kindTable)
	if o != nil {
		lease = o.lease.DeepCopy()
	}
	lease.Annotations[noteKey] = escape(table.Path)
	lease.Annotations[noteRows] = string(text)
	lease.Annotations[noteWrite] = id
	return lease, nil
}

// advisoryRows appends the living rows of o.
func (s *state) advisoryRows(rows []lockmgr.AdvisoryRow, o *object) ([]lockmgr.AdvisoryRow, error) {
	if o == nil {
		return rows, nil
	}
	table, err := o.tableKey()
	if err == nil {
		err = o.broken
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
	}
	for _, r := range s.livingRows(o) {
		rows = append(rows, lockmgr.AdvisoryRow{Table: table, Name: r.Name, Value: []byte(r.Value), Created: r.Created, Changed: r.Changed})
	}
	return rows, nil
}

// tableRows returns the rows of o, a table that was read after the mirror had shown everything up
// to since. o may be nil.
func (b *Backend) tableRows(o *object, since int64) (lockmgr.AdvisoryRows, error) {
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	rows, err := b.mirror.advisoryRows(nil, o)
	return lockmgr.AdvisoryRows{Revision: max(since, o.revision()), Rows: rows}, err
}

// shown is the revision up to which the mirror has shown everything.
func (b *Backend) shown() int64 {
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	return b.mirror.asOf
}

// AdvisoryRows implements lockmgr.AdvisoryBackend with one read. If one table is asked for, and the
// watch shows which sessions are alive, it reads that table's Lease; otherwise the Leases of all
// tables and sessions.
func (b *Backend) AdvisoryRows(ctx context.Context, tables ...lockmgr.Key) (lockmgr.AdvisoryRows, error) {
	if err := b.voidFormerTables(ctx, tables...); err != nil {
		return lockmgr.AdvisoryRows{}, fmt.Errorf("reading advisory locks: %w", err)
	}
	if since := b.shown(); len(tables) == 1 && since > 0 && b.mirror.connected() {
		o, err := b.get(ctx, b.names.table(tables[0]))
		if err != nil {
			return lockmgr.AdvisoryRows{}, fmt.Errorf("reading advisory locks: %w", err)
		}
		return b.tableRows(o, since)
	}
	st, err := b.snapshotOf(ctx, b.client.locks, b.names.advisory())
	if err != nil {
		return lockmgr.AdvisoryRows{}, fmt.Errorf("reading advisory locks: %w", err)
	}
	all := lockmgr.AdvisoryRows{Revision: st.asOf}
	for _, name := range slices.Sorted(maps.Keys(st.objects)) {
		o := st.objects[name]
		if o.kind != kindTable || len(tables) > 0 && !slices.ContainsFunc(tables, func(k lockmgr.Key) bool { return b.names.table(k) == name }) {
			continue
		}
		if all.Rows, err = st.advisoryRows(all.Rows, o); err != nil {
			return lockmgr.AdvisoryRows{}, err
		}
	}
	return all, nil
}

// WatchAdvisory is lockmgr.AdvisoryBackend's, by the mirror. The end of a session may have changed
// any table.
func (b *Backend) WatchAdvisory(ctx context.Context, changed func(lockmgr.Key, int64)) {
	if b.mirrored(ctx) != nil {
		return
	}
	m := b.mirror
	e := m.listen(aTable)
	defer m.unlisten(e)
	told, ends := make(map[string]int64), -1
	for {
		tables := make(map[lockmgr.Key]int64)
		m.mu.Lock()
		if m.ends != ends {
			ends, tables[lockmgr.Key{}] = m.ends, 0
		}
		for name := range told {
			if m.tables[name] == nil { // nobody deletes a table that has rows, but by hand
				delete(told, name)
				tables[lockmgr.Key{}] = 0
			}
		}
		for _, o := range m.tables {
			if told[o.name] < o.rev {
				told[o.name] = o.rev
				if table, err := o.tableKey(); err == nil {
					tables[table] = o.rev
				}
			}
		}
		m.mu.Unlock()
		for table, rev := range tables {
			changed(table, rev)
		}
		select {
		case <-e.ch:
		case <-ctx.Done():
			return
		}
	}
}

// errForbidden: the rows are not as an AdvisoryPut demands.
var errForbidden = errors.New("the rows have changed")

// allows reports whether rows are as p demands.
func allows(p lockmgr.AdvisoryPut, rows []row) bool {
	stand := make(map[string]int64)
	for _, r := range rows {
		if p.Since != lockmgr.AnyRevision && r.Changed > p.Since {
			return false
		}
		stand[r.Name] = r.Changed
	}
	for name, rev := range p.Stand {
		if stand[name] != rev {
			return false
		}
	}
	return true
}

// made reports whether rows show that p, which was sent, was made. Rows of these names are this
// session's alone, and each put of a name has another value than the one before.
func made(p lockmgr.AdvisoryPut, rows []row) bool {
	stand := make(map[string]string)
	for _, r := range rows {
		stand[r.Name] = r.Value
	}
	for name, value := range p.Put {
		if have, ok := stand[name]; !ok || have != string(value) {
			return false
		}
	}
	return !slices.ContainsFunc(p.Delete, func(name string) bool { _, ok := stand[name]; return ok })
}

// put returns rows after p.
func (s *Session) put(p lockmgr.AdvisoryPut, rows []row) []row {
	rows = slices.DeleteFunc(rows, func(r row) bool { return slices.Contains(p.Delete, r.Name) })
	for _, name := range slices.Sorted(maps.Keys(p.Put)) {
		r := row{Name: name, Session: s.id, Value: string(p.Put[name])}
		if i := slices.IndexFunc(rows, func(have row) bool { return have.Name == name }); i >= 0 {
			r.Created = rows[i].Created
			rows[i] = r
		} else {
			rows = append(rows, r)
		}
	}
	return rows
}

// PutAdvisory is lockmgr.AdvisorySession's: one write of the table's Lease, on condition of the
// version of which p's demands were found to be met.
func (s *Session) PutAdvisory(ctx context.Context, p lockmgr.AdvisoryPut) (rows lockmgr.AdvisoryRows, done bool, err error) {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return rows, false, err
	}
	defer leave()
	b := s.b
	name, since := b.names.table(p.Table), b.shown()
	var o *object
	if p.Void {
		o, err = b.voidTable(ctx, name)
	} else if err = b.voidFormerTables(ctx, p.Table); err == nil {
		sent := false
		o, err = b.change(ctx, name, false, func(o *object) (*coordinationv1.Lease, error) {
			if err := b.names.fits(o, p.Table); err != nil {
				return nil, err
			}
			b.mirror.mu.Lock()
			now := b.mirror.livingRows(o)
			b.mirror.mu.Unlock()
			if sent && made(p, now) {
				return nil, nil // the request was sent twice on its way; others may have written since
			}
			if !allows(p, now) {
				return nil, errForbidden
			}
			sent = true
			return b.names.tableLease(o, p.Table, s.put(p, now), uuid.NewString())
		})
		done = err == nil
		if errors.Is(err, errForbidden) {
			err = nil
		}
	}
	if err == nil {
		rows, err = b.tableRows(o, since)
	}
	if err != nil {
		if s.life.Ended() {
			err = lockmgr.ErrSessionLost
		}
		return lockmgr.AdvisoryRows{}, false, s.life.Noted(err)
	}
	return rows, done, nil
}

// voidTable makes void what was written to a table without an answer, and returns the table.
func (b *Backend) voidTable(ctx context.Context, name string) (*object, error) {
	if b.outgoing.Enter(ctx) != nil {
		return nil, retry.Ended(ctx)
	}
	defer b.outgoing.Leave()
	for _, w := range b.unanswered.those(func(w *sentWrite) bool { return w.Name == name }) {
		if err := b.voidOne(ctx, b.leases(), w); err != nil {
			return nil, err
		}
	}
	return b.get(ctx, name)
}

// voidFormerTables makes void what a process that has died may yet write to tables, or to all: the
// mount's row has the same name as before, so nobody could tell.
func (b *Backend) voidFormerTables(ctx context.Context, tables ...lockmgr.Key) error {
	return b.voidFormer(ctx, func(w *sentWrite) bool {
		return w.Kind == kindTable &&
			(len(tables) == 0 || slices.ContainsFunc(tables, func(k lockmgr.Key) bool { return b.names.table(k) == w.Name }))
	})
}
