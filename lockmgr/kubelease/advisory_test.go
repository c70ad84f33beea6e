package kubelease_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

func table(t *testing.T) lockmgr.Key {
	t.Helper()
	k, err := lockmgr.InodeKey("some/dir", 7)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func row(name string) map[string][]byte { return map[string][]byte{name: []byte(name)} }

func putRow(t *testing.T, s lockmgr.Session, p lockmgr.AdvisoryPut) (lockmgr.AdvisoryRows, bool) {
	t.Helper()
	p.Table = table(t)
	rows, done, err := s.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), p)
	if err != nil {
		t.Fatal(err)
	}
	return rows, done
}

// rowsOf are the names of the rows, seen by a client without faults.
func rowsOf(t *testing.T, volume string) string {
	t.Helper()
	rows, err := newBackend(t, volume).AdvisoryRows(within(t, patience), table(t))
	if err != nil {
		t.Fatal(err)
	}
	return rowNames(rows)
}

func rowNames(rows lockmgr.AdvisoryRows) string {
	var names []string
	for _, r := range rows.Rows {
		names = append(names, r.Name)
	}
	return strings.Join(names, " ")
}

// A change of rows without an answer was made, or it is void once that is asked for: then it changes
// nothing when it arrives.
func TestAdvisoryUnanswered(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]fate{"swallowed": swallowed, "late": late} {
		for _, verb := range []string{"create", "update"} {
			t.Run(name+" "+verb, func(t *testing.T) {
				t.Parallel()
				volume, l := newName(), &link{}
				s := open(t, newBackendAt(t, l.to(as(mountUser)), volume))
				before, since := "", int64(0)
				if verb == "update" {
					rows, _ := putRow(t, s, lockmgr.AdvisoryPut{Put: row("a")})
					before, since = "a", rows.Revision
				}
				rule, met := first(f, writes("advisory", verb))
				l.obey(rule)
				_, done, err := s.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table(t), Since: since, Put: row("b")})
				if done || !errors.Is(err, lockmgr.ErrUnavailable) || errors.Is(err, retry.ErrRefused) {
					t.Fatalf("without an answer: done %v, %v", done, err)
				}
				rows, done := putRow(t, s, lockmgr.AdvisoryPut{Void: true})
				want := before
				if f == swallowed {
					want = strings.TrimSpace(before + " b")
				}
				if got := rowNames(rows); done || got != want {
					t.Fatalf("once it is void: rows %q, want %q; done %v", got, want, done)
				}
				if f == late {
					(<-met).send(t)
				}
				if got := rowsOf(t, volume); got != want {
					t.Fatalf("in the end: rows %q, want %q", got, want)
				}
				if _, done := putRow(t, s, lockmgr.AdvisoryPut{Since: rows.Revision, Put: row("c")}); !done {
					t.Error("the next change is refused")
				}
			})
		}
	}
}

// A Create that is answered with a conflict does not make an earlier one void.
func TestAdvisoryContested(t *testing.T) {
	t.Parallel()
	for what, p := range map[string]lockmgr.AdvisoryPut{"void": {Void: true}, "another change": {Put: row("b")}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			volume, l := newName(), &link{}
			s := open(t, newBackendAt(t, l.to(as(mountUser)), volume))
			rule, met := first(late, writes("advisory", "create"))
			l.obey(rule)
			put := func(ctx context.Context, p lockmgr.AdvisoryPut) {
				t.Helper()
				p.Table = table(t)
				if _, done, err := s.(lockmgr.AdvisorySession).PutAdvisory(ctx, p); done || !errors.Is(err, lockmgr.ErrUnavailable) {
					t.Fatalf("done %v, %v", done, err)
				}
			}
			put(within(t, patience), lockmgr.AdvisoryPut{Put: row("a")})
			ctx, giveUp := context.WithCancel(within(t, patience))
			defer giveUp()
			rule, refused := first(contested, writes("advisory", "create"))
			l.obey(func(c *call) fate {
				f := rule(c)
				if f == contested && !p.Void {
					giveUp()
				}
				return f
			})
			put(ctx, p)
			if len(refused) != 1 {
				t.Fatal("there was no conflict")
			}
			if rows, _ := putRow(t, s, lockmgr.AdvisoryPut{Void: true}); len(rows.Rows) != 0 {
				t.Fatalf("rows %q", rowNames(rows))
			}
			(<-met).send(t)
			if got := rowsOf(t, volume); got != "" {
				t.Errorf("a late request has put %q", got)
			}
		})
	}
}

// A change that a proxy sends twice is made, and told so.
func TestAdvisorySentTwice(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s := open(t, newBackendAt(t, l.to(as(mountUser)), name))
	since := int64(0)
	for i, p := range []lockmgr.AdvisoryPut{{Put: row("a")}, {Put: row("b"), Stand: map[string]int64{"a": 0}}, {Delete: []string{"a"}}} {
		for a := range p.Stand {
			p.Stand[a] = since
		}
		p.Since = since
		rule, met := first(repeated, writes("advisory", "create", "update"))
		l.obey(rule)
		rows, done := putRow(t, s, p)
		if !done || len(met) != 1 {
			t.Fatalf("change %d: done %v, %d sent twice", i, done, len(met))
		}
		since = rows.Revision
	}
	if got := rowsOf(t, name); got != "b" {
		t.Errorf("rows %q, want b", got)
	}
}

// So it is if another mount writes the table before this one has read what became of its change.
func TestAdvisorySentTwiceAndOvertaken(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s, other := open(t, newBackendAt(t, l.to(as(mountUser)), name)), open(t, newBackend(t, name))
	since, changed := int64(0), int64(0)
	for i, c := range []struct {
		put    lockmgr.AdvisoryPut
		others string // the row that the other puts meanwhile
		want   string
	}{
		{lockmgr.AdvisoryPut{Put: row("a")}, "x", "a x"},
		{lockmgr.AdvisoryPut{Put: map[string][]byte{"a": []byte("2")}, Delete: []string{"b"}}, "y", "a x y"},
		{lockmgr.AdvisoryPut{Delete: []string{"a"}}, "z", "x y z"},
	} {
		c.put.Since = since
		if changed != 0 {
			c.put.Stand = map[string]int64{"a": changed}
		}
		rule, met := first(repeated, writes("advisory", "create", "update"))
		var overtake sync.Once
		l.obey(func(req *call) fate {
			if req.verb == "get" && len(met) > 0 {
				overtake.Do(func() { putRow(t, other, lockmgr.AdvisoryPut{Since: lockmgr.AnyRevision, Put: row(c.others)}) })
			}
			return rule(req)
		})
		rows, done := putRow(t, s, c.put)
		if got := rowNames(rows); !done || got != c.want {
			t.Fatalf("change %d: done %v, rows %q; want %q", i, done, got, c.want)
		}
		since, changed = rows.Revision, rows.Rows[0].Changed
	}
}

// The rows of a session that has ended count for nothing, also one that arrives late, and the next
// write removes them. Tables without rows are deleted in time.
func TestAdvisoryOfADeadSession(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	former := newBackendAt(t, l.to(as(mountUser)), name, hasty(kubelease.JanitorConfig{}))
	dying := open(t, former)
	b := newBackend(t, name, hasty(kubelease.JanitorConfig{Free: time.Nanosecond}))
	next := open(t, b)
	first1, _ := putRow(t, dying, lockmgr.AdvisoryPut{Put: row("dead")})
	rule, met := first(late, writes("advisory", "update"))
	l.obey(func(c *call) fate {
		if f := rule(c); f != passed || c.verb == "watch" {
			return f
		}
		return cut
	})
	if _, _, err := dying.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table(t), Since: first1.Revision, Put: row("late")}); err == nil {
		t.Fatal("a change without an answer was told as made")
	}
	if _, done := putRow(t, next, lockmgr.AdvisoryPut{Put: row("mine")}); done {
		t.Fatal("a row of a session that lives does not count")
	}
	expire(t, dying)
	(<-met).send(t)
	l.mend()
	former.Close()
	eventually(t, "the dead session's rows count for nothing", func() bool { return rowsOf(t, name) == "" })
	eventually(t, "its mount's neighbour sees that", func() bool {
		_, done := putRow(t, next, lockmgr.AdvisoryPut{Put: row("mine")})
		return done
	})
	rows, _ := putRow(t, next, lockmgr.AdvisoryPut{Void: true})
	if got := rowNames(rows); got != "mine" {
		t.Errorf("rows %q, want mine", got)
	}
	if n := len(names(t, name, "advisory")); n != 1 {
		t.Errorf("%d tables, want 1: one with rows must stay", n)
	}
	if _, done := putRow(t, next, lockmgr.AdvisoryPut{Since: rows.Revision, Delete: []string{"mine"}}); !done {
		t.Error("not deleted")
	}
	eventually(t, "the table is deleted", func() bool { return len(names(t, name, "advisory")) == 0 })
}

// Rows that do not fit into a Lease are refused, and what is there stays.
func TestAdvisoryTableIsFull(t *testing.T) {
	t.Parallel()
	name := newName()
	s := open(t, newBackend(t, name))
	rows, _ := putRow(t, s, lockmgr.AdvisoryPut{Put: row("a")})
	_, done, err := s.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{
		Table: table(t), Since: rows.Revision, Put: map[string][]byte{"b": make([]byte, 300<<10)},
	})
	if done || !errors.Is(err, retry.ErrRefused) {
		t.Fatalf("rows of 300 KiB: done %v, %v", done, err)
	}
	if got := rowsOf(t, name); got != "a" {
		t.Errorf("rows %q, want a", got)
	}
	if _, done := putRow(t, s, lockmgr.AdvisoryPut{Since: rows.Revision, Delete: []string{"a"}}); !done {
		t.Error("not deleted")
	}
}

// A table whose rows cannot be read gives no locks, and is left as it is.
func TestAdvisoryTableIsBroken(t *testing.T) {
	t.Parallel()
	name := newName()
	b := newBackend(t, name)
	s := open(t, b)
	putRow(t, s, lockmgr.AdvisoryPut{Put: row("a")})
	leases := raw(t)
	lease, err := leases.Get(within(t, patience), names(t, name, "advisory")[0], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lease.Annotations["lockfs.io/rows"] = "{"
	if _, err = leases.Update(within(t, patience), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, done, err := s.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table(t), Since: lockmgr.AnyRevision, Put: row("b")}); done || err == nil {
		t.Errorf("put into a table that cannot be read: done %v, %v", done, err)
	}
	if rows, err := b.AdvisoryRows(within(t, patience), table(t)); err == nil {
		t.Errorf("rows of a table that cannot be read: %+v", rows)
	}
}
