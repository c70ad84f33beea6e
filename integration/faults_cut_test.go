package integration

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// severances are the ways in which a mount, and it alone, can be cut off from
// the lock service.
var severances = map[string]struct{ sever, mend func(*wire) }{
	"refused": {(*wire).cut, (*wire).mend},
	"silent": {
		func(w *wire) { w.requests.close(); w.replies.close() },
		func(w *wire) { w.requests.open(); w.replies.open() },
	},
	"replies lost": { // what it asks for happens, and it does not know
		func(w *wire) { w.replies.close() },
		func(w *wire) { w.replies.open() },
	},
}

// A mount that is cut off from etcd for less than its session bears goes on: its
// writes wait at most, and those of others do not.
func TestCutOffForShort(t *testing.T) { over(t, testCutOffForShort, local, inLeases.forLong()) }

func testCutOffForShort(t *testing.T, on setup) {
	c := on.newService(t)
	for name, s := range severances {
		t.Run(name, func(t *testing.T) {
			tr, w := newTrial(t, c, "--wait", "-1"), newWire(t, c)
			a, b := tr.mount("a"), tr.mount("b", w.flag)
			tr.load(a)
			tr.load(b)
			tr.goesOn("before the fault")
			s.sever(w)
			between(time.Second, 3*time.Second) // the lease lives for 15
			s.mend(w)
			tr.goesOn("mended")
			tr.finish()
			tr.spared()
		})
	}
}

// A mount that is cut off for longer loses its locks: its programs get EIO
// before anybody else is granted one, and the others go on with no more than a
// pause. When it is mended it takes new locks.
func TestCutOffForLong(t *testing.T) { over(t, testCutOffForLong, local, inLeases) }

func testCutOffForLong(t *testing.T, on setup) {
	c := on.newService(t)
	for name, s := range severances {
		t.Run(name, func(t *testing.T) {
			tr, w := newTrial(t, c, "--wait", "-1"), newWire(t, c)
			a, b := tr.mount("a"), tr.mount("b", w.flag, "--ttl", shortTTL.String(), "--suspend-wait", "1s")
			holder, heir := newAgent(t), newAgent(t)
			fd := holder.open(b.path("held"), wronly|create|appends)
			tr.load(a)
			tr.load(b)
			tr.goesOn("before the fault")

			s.sever(w)
			severed := time.Now()
			granted := heir.start(call{Op: "open", Path: a.path("held"), Flags: wronly | appends})
			written := "" // by the holder, and confirmed
			eventually(t, "a write fails", func() bool {
				over := len(granted) > 0
				r := holder.do(call{Op: "write", FD: fd, Data: "x"})
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
			next := await(t, "open", granted).N
			t.Logf("EIO after %v, the next owner after %v", lost.Sub(severed).Round(100*time.Millisecond), time.Since(severed).Round(100*time.Millisecond))
			heir.must(call{Op: "write", FD: next, Data: "heir's"})
			holder.fails(call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
			s.mend(w)
			holder.fails(call{Op: "write", FD: fd, Data: "later"}, unix.EIO)
			holder.fails(call{Op: "close", FD: fd}, unix.EIO)
			if got := tr.read("held"); got != written+"heir's" {
				t.Errorf("the file holds %q, want %q and the heir's", got, written)
			}
			tr.goesOn("mended")
			tr.finish()
		})
	}
}

// What a waiter misses while it is cut off, and etcd forgets meanwhile, it reads
// when it is back: nobody waits for a lock that is free. A compaction that it
// does not miss anything by does not disturb it.
func TestCompactionDuringAWait(t *testing.T) {
	c := newCluster(t)
	tr, w := newTrial(t, c, "--wait", "-1"), newWire(t, c)
	a, b := tr.mount("a"), tr.mount("b", w.flag)
	holder, waiter := newAgent(t), newAgent(t)
	for _, cut := range []bool{false, true} {
		fd := holder.open(a.path("held"), wronly|create|appends)
		pending := waiter.start(call{Op: "open", Path: b.path("held"), Flags: wronly | appends})
		tr.waitFor("held")
		if cut {
			w.cut()
		} else {
			c.compact()
		}
		holder.must(call{Op: "write", FD: fd, Data: "one\n"})
		holder.must(call{Op: "close", FD: fd})
		if cut {
			eventually(t, "it is let go", func() bool { return tr.waiting("held") == 0 })
			c.compact()
			w.mend()
		}
		opened := await(t, "open", pending)
		waiter.must(call{Op: "write", FD: opened.N, Data: "two\n"})
		waiter.must(call{Op: "close", FD: opened.N})
	}
	if got := tr.read("held"); got != "one\ntwo\none\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
}
