package fs

import (
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

type bubbleClock struct{}

func (bubbleClock) Now() boottime.Instant { return boottime.Instant(time.Now().UnixNano()) }

const someNode, otherNode = 7, 8

var (
	someRoot  = &node{id: rootID}
	someName  = dirName{someRoot, "f"}
	otherName = dirName{someRoot, "g"}
	nameBelow = dirName{&node{id: 9}, "f"} // in a directory in which a program stands
)

// What an OPEN can be goes by what its thread has done since it was answered
// ESTALE.
func TestStages(t *testing.T) {
	const tid = 1 // lives
	type step func(vs *visits)
	openNode := func(node uint64, want stage, s fuse.Status) step {
		return func(vs *visits) {
			t.Helper()
			v := vs.come(tid, 0, node)
			if v.stage != want {
				t.Errorf("stage %d, want %d", v.stage, want)
			}
			vs.leave(v, s)
		}
	}
	open := func(want stage, s fuse.Status) step { return openNode(someNode, want, s) }
	takes := func(d time.Duration, node uint64) step {
		return func(vs *visits) {
			asked := vs.looks(tid)
			time.Sleep(d)
			vs.looked(tid, asked, someName, node)
		}
	}
	finds := func(node uint64) step { return takes(0, node) }
	looksFor := func(name dirName, node uint64) step {
		return func(vs *visits) { vs.looked(tid, vs.looks(tid), name, node) }
	}
	waits := func(d time.Duration) step { return func(*visits) { time.Sleep(d) } }
	for name, steps := range map[string][]step{
		"a name, found again":                    {open(fresh, stale), finds(otherNode), finds(someNode), open(retried, fuse.OK), open(fresh, fuse.OK)},
		"a name on a volume that is slow":        {open(fresh, stale), takes(time.Hour, otherNode), takes(time.Hour, someNode), open(retried, fuse.OK)},
		"a name that has gone":                   {open(fresh, stale), finds(0), open(fresh, fuse.OK)},
		"another name":                           {open(fresh, stale), finds(otherNode), open(fresh, fuse.OK)},
		"a descriptor":                           {open(fresh, stale), open(nameless, fuse.OK), open(fresh, fuse.OK)},
		"a descriptor, and then a name":          {open(fresh, stale), open(nameless, stale), open(fresh, stale), finds(someNode), open(retried, fuse.OK)},
		"a descriptor, after a failed call":      {open(fresh, stale), finds(someNode), open(retried, stale), open(fresh, stale), open(nameless, fuse.OK)},
		"who was killed, and a thread like it":   {open(fresh, stale), waits(parkFor), open(fresh, stale)},
		"who does not try again, and another":    {open(fresh, stale), openNode(otherNode, fresh, stale), openNode(otherNode, nameless, fuse.OK)},
		"a creation that does not try again":     {openNode(0, fresh, stale), openNode(0, fresh, stale), open(fresh, fuse.OK)},
		"a lookup that no ESTALE has called for": {finds(someNode), open(fresh, fuse.OK)},
		// What has looked may be the next call, by a name that the kernel remembers.
		"the call after one that failed": {open(fresh, stale), finds(someNode), open(retried, stale), open(fresh, stale), finds(someNode), open(retried, fuse.OK)},
		"the call after one that failed, which looks": {open(fresh, stale), finds(someNode), open(retried, stale), finds(someNode), open(unsure, stale), finds(someNode), open(retried, stale),
			finds(someNode), open(unsure, stale), open(fresh, stale), open(nameless, fuse.OK)},
		"the call after one that found nothing": {open(fresh, stale), looksFor(otherName, 0), finds(someNode), open(unsure, stale), finds(someNode), open(retried, fuse.OK)},
		"the call after one that found nothing, by the same name": {open(fresh, stale), looksFor(nameBelow, 0), looksFor(nameBelow, someNode), open(unsure, stale),
			looksFor(nameBelow, someNode), open(retried, fuse.OK)},
		"a name that was gone and is there": {open(fresh, stale), finds(0), finds(someNode), open(retried, fuse.OK)},
		"a name, after a long freeze":       {open(fresh, stale), waits(time.Hour), finds(someNode), open(unsure, stale), finds(someNode), open(retried, fuse.OK)},
		"a name, and then a long freeze":    {open(fresh, stale), finds(someNode), waits(time.Hour), open(unsure, stale), open(fresh, fuse.OK)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(*testing.T) {
				var vs visits
				for _, s := range steps {
					s(&vs)
				}
				vs.looked(tid+1, vs.looks(tid+1), someName, someNode)
				if v := vs.come(tid+1, 0, someNode); v.stage != fresh {
					t.Errorf("another thread is at stage %d", v.stage)
				}
				v := vs.come(0, 0, someNode)
				vs.leave(v, stale)
				if again := vs.come(0, 0, someNode); v.stage != retried || again.stage != retried {
					t.Errorf("a caller that cannot be told from others is at stage %d, %d", v.stage, again.stage)
				}
			})
		})
	}
}

// A lock is parked for the next visit of one thread, for a second.
func TestParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := lockmgrtest.NewMemory()
		m, err := lockmgr.New(t.Context(), lockmgr.Config{Backend: svc, Renew: renew.Config{TTL: 15 * time.Second, Clock: bubbleClock{}}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(t.Context())
		key, err := lockmgr.FileKey("f")
		if err != nil {
			t.Fatal(err)
		}
		const tid = 1
		keys := []lockmgr.Key{key}
		var vs visits
		park := func() *lockmgr.Hold {
			h, err := m.Acquire(t.Context(), lockmgr.Request{Owner: "me", Keys: keys})
			if err != nil {
				t.Fatal(err)
			}
			v := vs.come(tid, 0, someNode)
			v.drop()
			v.stage, v.hold = fresh, h
			vs.leave(v, stale)
			return h
		}

		hold := park()
		other := vs.come(tid+1, 0, someNode)
		if other.fetch("me", policy.ScopeProcess, lockmgr.Exclusive, keys) != nil {
			t.Error("another thread fetched the lock")
		}
		vs.leave(other, fuse.OK)
		time.Sleep(parkFor - time.Millisecond)
		v := vs.come(tid, 0, someNode)
		if v.fetch("another", policy.ScopeProcess, lockmgr.Exclusive, keys) != nil {
			t.Error("another owner fetched the lock")
		}
		if v.fetch("me", policy.ScopeProcess, lockmgr.Shared, keys) != nil {
			t.Error("the lock was fetched to be shared")
		}
		if v.fetch("me", policy.ScopeProcess, lockmgr.Exclusive, []lockmgr.Key{{Path: "g"}}) != nil {
			t.Error("the lock was fetched for another file")
		}
		if v.fetch("another", policy.ScopeHandle, lockmgr.Exclusive, keys) != hold {
			t.Error("the lock is not there any more")
		}
		if v.fetch("another", policy.ScopeHandle, lockmgr.Exclusive, keys) != nil {
			t.Error("the lock was fetched twice")
		}
		vs.leave(v, fuse.OK)
		time.Sleep(2 * parkFor)
		if svc.Count() != 1 {
			t.Error("a lock that was fetched is released")
		}
		hold.Release()
		synctest.Wait()

		// The kernel looks a name up twice before it creates the file, and the volume is slow.
		hold = park()
		for range 2 {
			asked := vs.looks(tid)
			time.Sleep(2 * createFor)
			vs.looked(tid, asked, someName, 0)
		}
		time.Sleep(createFor / 2)
		create := vs.come(tid, 0, 0)
		if create.fetch("me", policy.ScopeProcess, lockmgr.Exclusive, keys) != hold {
			t.Error("the lock is not there for the creation")
		}
		vs.leave(create, fuse.OK)
		hold.Release()
		synctest.Wait()

		for what, end := range map[string]func(){
			"that nobody fetched":         func() { time.Sleep(parkFor + time.Millisecond) },
			"whose caller has found none": func() { vs.looked(tid, vs.looks(tid), someName, 0); time.Sleep(createFor + time.Millisecond) },
			"whose caller looks again and again": func() {
				for range 4 {
					asked := vs.looks(tid)
					time.Sleep(createFor * 2 / 3)
					vs.looked(tid, asked, someName, 0)
				}
			},
			"that was not needed":         func() { vs.leave(vs.come(tid, 0, someNode), fuse.OK) },
			"whose caller got the ESTALE": func() { vs.looked(tid, vs.looks(tid), someName, someNode); vs.leave(vs.come(tid, 0, someNode), stale) },
		} {
			park()
			end()
			synctest.Wait()
			if svc.Count() != 0 {
				t.Errorf("a lock %s is still held", what)
			}
		}
	})
}

// Threads that have ended are forgotten, those that live are not.
func TestVisitsForgetTheDead(t *testing.T) {
	const noThread = 1 << 23 // beyond the largest pid_max
	synctest.Test(t, func(t *testing.T) {
		var vs visits
		me := uint32(os.Getpid())
		vs.leave(vs.come(me, 0, someNode), stale)
		for i := range uint32(10_000) {
			vs.leave(vs.come(noThread+i, 0, someNode), stale)
		}
		vs.looked(me, vs.looks(me), someName, someNode)
		if len(vs.threads) > 200 || vs.come(me, 0, someNode).stage != retried {
			t.Errorf("%d threads are known", len(vs.threads))
		}
	})
}

// What a second try reads is kept open for it alone, for a second, and is closed in any case.
func TestFileForASecondTry(t *testing.T) {
	const tid, flags = 1, uint32(os.O_RDONLY)
	open := func() int {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	isOpen := func(fd int) bool {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil
	}
	request := func(node uint64, flags, uid uint32) *fuse.OpenIn {
		in := &fuse.OpenIn{Flags: flags}
		in.NodeId, in.Uid = node, uid
		return in
	}
	var vs visits
	sent := func() (fd int) {
		v := vs.come(tid, 0, someNode)
		v.stage, v.reads, v.flags = fresh, true, flags
		vs.leave(v, stale)
		vs.looked(tid, vs.looks(tid), someName, someNode)
		if got, ok := vs.reading(tid); !ok || got != flags {
			t.Errorf("the thread reads with %d, %v", got, ok)
		}
		fd = open()
		vs.keep(tid, &fileToRead{node: someNode, flags: flags, fd: fd})
		return fd
	}
	fetch := func(node uint64, in *fuse.OpenIn) int {
		v := vs.come(tid, 0, node)
		fd := v.fetchFile(in)
		vs.leave(v, fuse.OK)
		return fd
	}
	synctest.Test(t, func(t *testing.T) {
		fd := sent()
		if got := fetch(someNode, request(someNode, flags, 0)); got != fd || !isOpen(fd) {
			t.Errorf("the second try got %d, want %d", got, fd)
		}
		time.Sleep(2 * parkFor)
		if !isOpen(fd) {
			t.Error("what was taken over is closed")
		}
		unix.Close(fd)
		for who, in := range map[string]*fuse.OpenIn{
			"an open of another file": request(otherNode, flags, 0),
			"an open to run it":       request(someNode, flags|fmodeExec, 0),
			"another user":            request(someNode, flags, 1),
		} {
			fd := sent()
			if got := fetch(in.NodeId, in); got != -1 || isOpen(fd) {
				t.Errorf("%s got %d; it is open: %v", who, got, isOpen(fd))
			}
		}
		for what, end := range map[string]func(){
			"that nobody fetched":        func() { time.Sleep(parkFor + time.Millisecond) },
			"beside a later one":         func() { vs.keep(tid, &fileToRead{node: someNode, flags: flags, fd: open()}); vs.keep(tid, nil) },
			"of a thread that links now": func() { vs.leave(vs.comeToLink(tid, 0, someNode, otherName), fuse.OK) },
			"of a thread that is gone":   func() { vs.leave(vs.come(tid, 0, someNode), fuse.OK); vs.keep(tid, nil) },
		} {
			fd := sent()
			end()
			synctest.Wait()
			if isOpen(fd) {
				t.Errorf("a file %s is still open", what)
			}
		}
	})
}
