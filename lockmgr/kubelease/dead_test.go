package kubelease_test

import (
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/journal/journaltest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// mortal is a process of a volume that records what the next one needs.
type mortal struct {
	*kubelease.Backend
	link *link
	left func() *journal.Records // that the process leaves if it dies now; nil: nothing
}

func newMortal(t *testing.T, volume string) *mortal {
	t.Helper()
	part, left := journaltest.Part(t)
	p := &mortal{link: &link{}, left: left}
	p.Backend = newBackendAt(t, p.link.to(as(mountUser)), volume)
	p.Record(part)
	return p
}

// after starts the process that goes on from a dead one's records.
func after(t *testing.T, volume string, records *journal.Records) *mortal {
	t.Helper()
	p := newMortal(t, volume)
	if records == nil {
		t.Fatal("nothing was recorded")
	}
	if err := p.Recover(records); err != nil {
		t.Fatal(err)
	}
	return p
}

// dying is a session whose process dies when a write that it has sent is under way.
type dying struct {
	lockmgr.Session
	process *mortal
	records *journal.Records
	late    *call // that write
}

// die calls do. At the first write that fits, the process dies.
func (d *dying) die(t *testing.T, fits func(*call) bool, do func() error) {
	t.Helper()
	var mu sync.Mutex // requests come side by side
	d.process.link.obey(func(c *call) fate {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case d.late == nil && fits(c):
			d.late, d.records = c, d.process.left()
			return late
		case d.late != nil:
			return cut
		}
		return passed
	})
	err := do()
	mu.Lock()
	died := d.late != nil
	mu.Unlock()
	if err == nil || !died {
		t.Fatalf("the process has not died: %v", err)
	}
	d.Session.(lockmgr.HandedOn).Abandon()
	t.Cleanup(d.process.link.mend) // the session is closed in the end
}

// deaths are what a process may do when it dies. Each returns how to tell that it has done it.
var deaths = map[string]func(t *testing.T, volume string, d *dying) (done func() bool){
	"create of a lock": func(t *testing.T, volume string, d *dying) func() bool {
		d.die(t, writes("file", "create"), func() error { return try(t, d, file("f")) })
		return func() bool { return len(entries(t, volume)) > 0 }
	},
	"update of a lock": func(t *testing.T, volume string, d *dying) func() bool {
		release(t, d, must(t, d, lockmgr.NoWait, file("f"))...)
		d.die(t, writes("file", "update"), func() error { return try(t, d, file("f")) })
		return func() bool { return len(entries(t, volume)) > 0 }
	},
	"lock of a directory": func(t *testing.T, volume string, d *dying) func() bool {
		d.die(t, writes("tree", "create"), func() error { return try(t, d, tree("d")) })
		return func() bool { return len(entries(t, volume)) > 0 }
	},
	// The Lease that it wanted to update was deleted since.
	"create after an update": func(t *testing.T, volume string, d *dying) func() bool {
		release(t, d, must(t, d, lockmgr.NoWait, file("f"))...)
		d.process.link.obey(func(c *call) fate {
			if c.has("-file-") {
				return cut // also what would clean up
			}
			return passed
		})
		if try(t, d, file("f")) == nil {
			t.Fatal("there was an answer")
		}
		list, err := raw(t).List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=file"})
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range list.Items {
			if lease.Annotations["lockfs.io/volume-name"] == "test/"+volume {
				if err := raw(t).Delete(t.Context(), lease.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
		}
		eventually(t, "the mount sees it", func() bool { return !kubelease.Mirrors(d.process.Backend, file("f")) })
		d.die(t, writes("file", "create"), func() error { return try(t, d, file("f")) })
		return func() bool { return len(entries(t, volume)) > 0 }
	},
	"create of a table": func(t *testing.T, volume string, d *dying) func() bool {
		d.die(t, writes("advisory", "create"), func() error { return tryRow(t, d, lockmgr.AdvisoryPut{Put: row("a")}) })
		return func() bool { return rowsOf(t, volume) != "" }
	},
	"row that is put": func(t *testing.T, volume string, d *dying) func() bool {
		rows, _ := putRow(t, d.Session, lockmgr.AdvisoryPut{Put: row("a")})
		d.die(t, writes("advisory", "update"), func() error {
			return tryRow(t, d, lockmgr.AdvisoryPut{Since: rows.Revision, Put: row("b")})
		})
		return func() bool { return rowsOf(t, volume) != "a" }
	},
	"row that is removed": func(t *testing.T, volume string, d *dying) func() bool {
		putRow(t, d.Session, lockmgr.AdvisoryPut{Put: row("a")})
		d.die(t, writes("advisory", "update"), func() error {
			return tryRow(t, d, lockmgr.AdvisoryPut{Since: lockmgr.AnyRevision, Delete: []string{"a"}})
		})
		return func() bool { return rowsOf(t, volume) != "a" }
	},
}

func try(t *testing.T, s lockmgr.Session, k lockmgr.Key) error {
	t.Helper()
	_, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, k))
	return err
}

func tryRow(t *testing.T, d *dying, p lockmgr.AdvisoryPut) error {
	t.Helper()
	p.Table = table(t)
	_, _, err := d.Session.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), p)
	return err
}

// What a process has sent before it died has no effect once the next one has removed what nobody claims,
// nor, if that has died before, once the one after it has.
func TestWriteOfADeadProcessIsLate(t *testing.T) {
	t.Parallel()
	for what, act := range deaths {
		for successors := range 2 {
			t.Run([]string{"next: ", "next but one: "}[successors]+what, func(t *testing.T) {
				t.Parallel()
				volume := newName()
				first := newMortal(t, volume)
				d := &dying{Session: open(t, first), process: first}
				done := act(t, volume, d)
				next := after(t, volume, d.records)
				for range successors {
					next = after(t, volume, next.left())
				}
				_, s := adopt(t, next.Backend, d.Session)
				removeUnclaimed(t, s)
				if n := kubelease.Unanswered(next.Backend); n > 0 {
					t.Errorf("%d writes are void, and count as not answered", n)
				}
				d.late.send(t)
				if done() {
					t.Error("it was done when the next process had begun")
				}
			})
		}
	}
}

// A process that reads a table, of flock and fcntl locks, has made void before what may yet be
// written there.
func TestTableOfADeadProcessIsRead(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"create of a table", "row that is put", "row that is removed"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			volume := newName()
			first := newMortal(t, volume)
			d := &dying{Session: open(t, first), process: first}
			done := deaths[what](t, volume, d)
			next := after(t, volume, d.records)
			adopt(t, next.Backend, d.Session)
			if _, err := next.AdvisoryRows(within(t, patience), table(t)); err != nil {
				t.Fatal(err)
			}
			d.late.send(t)
			if done() {
				t.Error("it was done after the table was read")
			}
		})
	}
}

// A write that was answered is in no record.
func TestAnsweredWritesAreForgotten(t *testing.T) {
	t.Parallel()
	volume := newName()
	p := newMortal(t, volume)
	s := open(t, p)
	rows, _ := putRow(t, s, lockmgr.AdvisoryPut{Put: row("a")})
	putRow(t, s, lockmgr.AdvisoryPut{Since: rows.Revision, Delete: []string{"a"}})
	for range 3 {
		release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
	}
	next := newMortal(t, volume)
	if records := p.left(); records != nil {
		if err := next.Recover(records); err != nil {
			t.Fatal(err)
		}
	}
	if n := kubelease.Unanswered(next.Backend); n != 0 {
		t.Errorf("%d writes are recorded as not answered", n)
	}
}
