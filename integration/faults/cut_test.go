package faults

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// severances are the ways in which a mount, and it alone, can be cut off from
// the lock service.
var severances = map[string]struct{ sever, mend func(*lab.Wire) }{
	"refused": {(*lab.Wire).Cut, (*lab.Wire).Mend},
	"silent": {
		func(w *lab.Wire) { w.Requests.Close(); w.Replies.Close() },
		func(w *lab.Wire) { w.Requests.Open(); w.Replies.Open() },
	},
	"replies lost": { // what it asks for happens, and it does not know
		func(w *lab.Wire) { w.Replies.Close() },
		func(w *lab.Wire) { w.Replies.Open() },
	},
}

// A mount that is cut off from etcd for less than its session bears goes on: its
// writes wait at most, and those of others do not.
func TestCutOffForShort(t *testing.T) {
	lab.Over(t, testCutOffForShort, lab.Local, lab.InLeases.Alone().ForLong())
}

func testCutOffForShort(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for name, s := range severances {
		t.Run(name, func(t *testing.T) {
			tr, w := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m"), lab.NewWire(t, c)
			a, b := tr.Mount("a"), tr.Mount("b", w.Flag)
			tr.Load(a)
			tr.Load(b)
			tr.GoesOn("before the fault")
			severed := time.Now()
			s.sever(w)
			lab.Between(time.Second, 3*time.Second) // the lease lives for 15
			s.mend(w)
			lasted := time.Since(severed)
			tr.GoesOn("mended")
			tr.Finish()
			tr.SparedBy(lasted)
		})
	}
}

// A mount that is cut off for longer loses its locks: its programs get EIO
// before anybody else is granted one, and the others go on with no more than a
// pause. When it is mended it takes new locks.
func TestCutOffForLong(t *testing.T) {
	lab.Over(t, testCutOffForLong, lab.Local, lab.InLeases.Alone().ForLong())
}

func testCutOffForLong(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for name, s := range severances {
		t.Run(name, func(t *testing.T) {
			tr, w := history.New(t, c, "--wait", "-1"), lab.NewWire(t, c)
			a, b := tr.Mount("a"), tr.Mount("b", w.Flag, "--ttl", lab.ShortTTL.String(), "--suspend-wait", "1s")
			holder, heir := lab.NewAgent(t), lab.NewAgent(t)
			fd := holder.Open(b.Path("held"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
			tr.Load(a)
			tr.Load(b)
			tr.GoesOn("before the fault")

			s.sever(w)
			severed := time.Now()
			granted := heir.Start(lab.Call{Op: "open", Path: a.Path("held"), Flags: unix.O_WRONLY | unix.O_APPEND})
			written := "" // by the holder, and confirmed
			lab.Eventually(t, "a write fails", func() bool {
				over := len(granted) > 0
				r := holder.Do(lab.Call{Op: "write", FD: fd, Data: "x"})
				if r.Errno == 0 {
					written += "x"
				} else if r.Errno != unix.EIO {
					t.Fatalf("write: %v, want EIO", r.Err())
				}
				if over && r.Errno == 0 {
					t.Fatal("a write succeeds that was begun after the next owner's grant")
				}
				return r.Errno != 0
			})
			lost := time.Now()
			next := lab.Await(t, "open", granted).N
			t.Logf("EIO after %v, the next owner after %v", lost.Sub(severed).Round(100*time.Millisecond), time.Since(severed).Round(100*time.Millisecond))
			heir.Must(lab.Call{Op: "write", FD: next, Data: "heir's"})
			holder.Fails(lab.Call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
			s.mend(w)
			holder.Fails(lab.Call{Op: "write", FD: fd, Data: "later"}, unix.EIO)
			holder.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
			// The write that failed may have been on its way to the volume when the lock was lost.
			if got := tr.Read("held"); got != written+"heir's" && got != written+"x"+"heir's" {
				t.Errorf("the file holds %q, want %q, at most one x more, and the heir's", got, written)
			}
			tr.GoesOn("mended")
			tr.Finish()
		})
	}
}

// What a waiter misses while it is cut off, and etcd forgets meanwhile, it reads
// when it is back: nobody waits for a lock that is free. A compaction that it
// does not miss anything by does not disturb it.
func TestCompactionDuringAWait(t *testing.T) {
	t.Parallel()
	c := lab.NewCluster(t)
	tr, w := history.New(t, c, "--wait", "-1"), lab.NewWire(t, c)
	a, b := tr.Mount("a"), tr.Mount("b", w.Flag)
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	for _, cut := range []bool{false, true} {
		fd := holder.Open(a.Path("held"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
		pending := waiter.Start(lab.Call{Op: "open", Path: b.Path("held"), Flags: unix.O_WRONLY | unix.O_APPEND})
		tr.WaitFor("held")
		if cut {
			w.Cut()
		} else {
			c.Compact()
		}
		holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
		holder.Must(lab.Call{Op: "close", FD: fd})
		if cut {
			lab.Eventually(t, "it is let go", func() bool { return tr.Waiting("held") == 0 })
			c.Compact()
			w.Mend()
		}
		opened := lab.Await(t, "open", pending)
		waiter.Must(lab.Call{Op: "write", FD: opened.N, Data: "two\n"})
		waiter.Must(lab.Call{Op: "close", FD: opened.N})
	}
	if got := tr.Read("held"); got != "one\ntwo\none\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
}
