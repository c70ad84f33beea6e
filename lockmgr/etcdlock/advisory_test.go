package etcdlock_test

import (
	"errors"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// inode is a table of advisory locks.
func inode(t *testing.T, number uint64) lockmgr.Key {
	t.Helper()
	k, err := lockmgr.InodeKey("", number)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func rows(table lockmgr.Key, names ...string) lockmgr.AdvisoryPut {
	p := lockmgr.AdvisoryPut{Table: table, Since: lockmgr.AnyRevision, Put: make(map[string][]byte)}
	for _, name := range names {
		p.Put[name] = []byte("{}")
	}
	return p
}

// A row that arrives after it was made void is not put.
func TestLateAdvisoryRow(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	s, table := open(t, b).(lockmgr.AdvisorySession), inode(t, 7)
	kv.next(lateRequest)
	if _, _, err := s.PutAdvisory(within(t, patience), rows(table, "late")); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	if void, _, err := s.PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table, Void: true}); err != nil || len(void.Rows) > 0 {
		t.Fatal(void, err)
	}
	kv.deliver(t)
	if have, err := b.AdvisoryRows(within(t, patience), table); err != nil || len(have.Rows) > 0 {
		t.Errorf("%+v, %v", have, err)
	}
}

// A row that was put in the revision after the one that was read forbids a put.
func TestAdvisoryRowOfTheNextRevision(t *testing.T) {
	b, _ := newVolume(t, dial(t))
	s, table := open(t, b).(lockmgr.AdvisorySession), inode(t, 7)
	have, _, err := s.PutAdvisory(within(t, patience), rows(table, "a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, before := range []int64{1, 0} {
		p := rows(table, "b")
		p.Since = have.Revision - before
		if _, done, err := s.PutAdvisory(within(t, patience), p); err != nil || done != (before == 0) {
			t.Errorf("a row was put %d revisions after those that were read: done %v, %v", before, done, err)
		}
	}
}

// Who is not told that its rows were made void is refused once, and then puts them.
func TestAdvisoryRowsAfterALostVoid(t *testing.T) {
	client, kv := flawed(t)
	b, _ := newVolume(t, client)
	s, table := open(t, b).(lockmgr.AdvisorySession), inode(t, 7)
	kv.next(lostReply)
	if _, _, err := s.PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table, Void: true}); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatal(err)
	}
	for _, want := range []bool{false, true} {
		if have, done, err := s.PutAdvisory(within(t, patience), rows(table, "a")); err != nil || done != want {
			t.Errorf("done %v, want %v: %+v, %v", done, want, have, err)
		}
	}
}

// More tables than a Txn may read are read together.
func TestManyAdvisoryTables(t *testing.T) {
	b, _ := newVolume(t, dial(t))
	s := open(t, b).(lockmgr.AdvisorySession)
	var tables []lockmgr.Key
	for i := range 150 {
		tables = append(tables, inode(t, uint64(i+1)))
	}
	for _, table := range []lockmgr.Key{tables[0], tables[149]} {
		if _, done, err := s.PutAdvisory(within(t, patience), rows(table, "a")); !done {
			t.Fatal(err)
		}
	}
	if have, err := b.AdvisoryRows(within(t, patience), tables...); err != nil || len(have.Rows) != 2 {
		t.Errorf("%+v, %v", have, err)
	}
}
