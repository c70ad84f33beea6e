package lockmgrtest

import (
	"context"
	"errors"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// advisory returns what the backend has for advisory locks. It skips the test if it has nothing.
func (b *bench) advisory() (lockmgr.AdvisoryBackend, func() lockmgr.AdvisorySession, lockmgr.Key) {
	b.Helper()
	service, ok := b.b.(lockmgr.AdvisoryBackend)
	if !ok {
		b.Skip("this lock service keeps no advisory locks")
	}
	table, err := lockmgr.InodeKey("some/dir", 7)
	if err != nil {
		b.Fatal(err)
	}
	return service, func() lockmgr.AdvisorySession { return Open(b.T, b.b, TTL).(lockmgr.AdvisorySession) }, table
}

func (b *bench) putRow(s lockmgr.AdvisorySession, p lockmgr.AdvisoryPut) (lockmgr.AdvisoryRows, bool) {
	b.Helper()
	rows, done, err := s.PutAdvisory(b.Context(), p)
	if err != nil {
		b.Fatal(err)
	}
	return rows, done
}

func (b *bench) told(changed <-chan struct{}, what string) {
	b.Helper()
	select {
	case <-changed:
	case <-time.After(Patience):
		b.Fatalf("%s is not told", what)
	}
}

// A row that was put since forbids a put, and no other does.
func testAdvisoryPut(b *bench) {
	service, open, table := b.advisory()
	one, two := open(), open()
	row := func(name string) map[string][]byte { return map[string][]byte{name: []byte(name)} }
	first, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Put: row("a")})
	if !done {
		b.Fatal("the first row of a table was refused")
	}
	rows, done := b.putRow(two, lockmgr.AdvisoryPut{Table: table, Put: row("b")})
	if done || len(rows.Rows) != 1 || rows.Rows[0].Name != "a" || string(rows.Rows[0].Value) != "a" || rows.Rows[0].Table != table ||
		rows.Rows[0].Changed != first.Revision || rows.Rows[0].Created != first.Revision {
		b.Fatalf("put as the first: done %v, %+v; want the row of revision %d", done, rows, first.Revision)
	}
	other, _ := lockmgr.InodeKey("some/dir", 77)
	if _, done := b.putRow(two, lockmgr.AdvisoryPut{Table: other, Put: row("c")}); !done {
		b.Error("a row of another table forbids a put")
	}
	second, done := b.putRow(two, lockmgr.AdvisoryPut{Table: table, Since: rows.Revision, Put: row("b")})
	if !done || second.Revision <= first.Revision || len(second.Rows) != 2 {
		b.Fatalf("put since the rows were read: done %v, %+v, after revision %d; want both rows", done, second, first.Revision)
	}
	if _, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Since: first.Revision, Stand: map[string]int64{"a": first.Revision}, Put: row("a")}); done {
		b.Error("put although a row was put since")
	}
	changed, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Since: lockmgr.AnyRevision, Stand: map[string]int64{"a": first.Revision}, Put: row("a")})
	if !done {
		b.Error("not put although any revision would do")
	}
	if _, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Since: lockmgr.AnyRevision, Stand: map[string]int64{"a": first.Revision}, Put: row("a")}); done {
		b.Error("put although its row does not stand as it was put")
	}
	all, err := service.AdvisoryRows(b.Context())
	if err != nil || len(all.Rows) != 3 {
		b.Errorf("all rows: %+v, %v; want 3", all, err)
	}
	third, _ := lockmgr.InodeKey("some/dir", 78)
	if some, err := service.AdvisoryRows(b.Context(), other, third); err != nil || len(some.Rows) != 1 || some.Rows[0].Table != other {
		b.Errorf("rows of two tables, of which one is empty: %+v, %v", some, err)
	}
	if _, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Since: changed.Revision, Put: row("d"), Delete: []string{"a"}}); !done {
		b.Error("not deleted")
	}
	if rows, err = service.AdvisoryRows(b.Context(), table); err != nil || len(rows.Rows) != 2 {
		b.Errorf("rows: %+v, %v; want b and d", rows, err)
	}
}

// Rows end with their session, and a watch tells it.
func testAdvisoryEnd(b *bench) {
	service, open, table := b.advisory()
	one := open()
	ctx, cancel := context.WithCancel(b.Context())
	changed := make(chan struct{}, 1)
	over := make(chan struct{})
	go func() {
		defer close(over)
		service.WatchAdvisory(ctx, func(lockmgr.Key, int64) {
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}()
	defer func() { cancel(); <-over }()
	<-changed // the watch stands
	b.putRow(one, lockmgr.AdvisoryPut{Table: table, Put: map[string][]byte{"a": nil}})
	b.told(changed, "a change")
	if b.opts.Expire != nil {
		b.opts.Expire(b.T, b.b, one)
	} else if err := one.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
	for {
		rows, err := service.AdvisoryRows(b.Context(), table)
		if err != nil {
			b.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		b.told(changed, "the end of a session")
	}
	if _, _, err := one.PutAdvisory(b.Context(), lockmgr.AdvisoryPut{Table: table, Since: lockmgr.AnyRevision, Put: map[string][]byte{"a": nil}}); !errors.Is(err, lockmgr.ErrSessionLost) {
		b.Errorf("put on a session that has ended: %v, want ErrSessionLost", err)
	}
}

// Void returns the rows, and changes none.
func testAdvisoryVoid(b *bench) {
	_, open, table := b.advisory()
	one := open()
	put, _ := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Put: map[string][]byte{"a": []byte("1")}})
	rows, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Void: true})
	if done || len(rows.Rows) != 1 || rows.Rows[0].Changed != put.Revision {
		b.Fatalf("void: done %v, %+v", done, rows)
	}
	if _, done := b.putRow(one, lockmgr.AdvisoryPut{Table: table, Since: rows.Revision, Put: map[string][]byte{"b": nil}}); !done {
		b.Error("a put after a void one was refused")
	}
}
