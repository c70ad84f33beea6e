package integration

import (
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// refusedAll makes the calls by which another owner would change the file under
// any of its names, and expects all to be refused.
func refusedAll(t *testing.T, p *agent, m *mount, names ...string) {
	t.Helper()
	for _, name := range names {
		path := m.path(name)
		for _, c := range []call{
			{Op: "open", Path: path, Flags: wronly | nonblock},
			{Op: "open", Path: path, Flags: rdonly | trunc | nonblock},
			{Op: "truncate", Path: path},
			{Op: "unlink", Path: path},
			{Op: "rename", Path: path, Path2: m.path("elsewhere")},
			{Op: "rename", Path: m.path("other"), Path2: path},
			{Op: "link", Path: path, Path2: m.path("elsewhere")},
		} {
			switch r := p.do(c); r.Errno {
			case unix.EBUSY, unix.EAGAIN:
			case unix.ENOLCK: // a machine under load does not answer within so short a --name-wait
			default:
				t.Errorf("on %s: %s %s: %v, want EBUSY", m.name, c.Op, name, r.Err())
			}
		}
	}
}

// A file with several names is one file: the lock of one excludes the others,
// on every mount.
func TestHardLinksAreOneFile(t *testing.T) {
	over(t, testHardLinksAreOneFile, local, overClients.forLong(), overClientsThatDoubt, onNetworkVolume)
}

func testHardLinksAreOneFile(t *testing.T, on setup) {
	v := on.newVolume(t, "--name-wait", "100ms")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	v.write("other", "")
	if err := os.Link(v.inSource("f"), v.inSource("g")); err != nil {
		t.Fatal(err)
	}
	holder, p := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly)
	for _, m := range []*mount{a, b} {
		refusedAll(t, p, m, "f", "g")
	}
	// Its own program is not concerned.
	own := holder.open(a.path("g"), rdwr)
	holder.must(call{Op: "close", FD: own})
	holder.must(call{Op: "link", Path: a.path("g"), Path2: a.path("h")})
	holder.must(call{Op: "rename", Path: a.path("g"), Path2: a.path("i")})
	refusedAll(t, p, b, "f", "h", "i")
	holder.must(call{Op: "close", FD: fd})
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
	p.must(call{Op: "close", FD: p.open(b.path("i"), wronly)})
}

// A file gets its second name while it is open, and loses its first.
func TestLinkWhileOpen(t *testing.T) { over(t, testLinkWhileOpen, local, onNetworkVolume) }

func testLinkWhileOpen(t *testing.T, on setup) {
	v := on.newVolume(t, "--name-wait", "100ms")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("other", "")
	holder, p := newAgent(t), newAgent(t)
	fd := holder.open(a.path("tmp"), wronly|create)
	holder.must(call{Op: "link", Path: a.path("tmp"), Path2: a.path("f")})
	for _, m := range []*mount{a, b} {
		refusedAll(t, p, m, "tmp", "f")
	}
	holder.must(call{Op: "unlink", Path: a.path("tmp")})
	for _, m := range []*mount{a, b} {
		refusedAll(t, p, m, "f")
	}
	// The name it lost is anybody's.
	p.must(call{Op: "close", FD: p.open(b.path("tmp"), wronly|create)})
	holder.must(call{Op: "write", FD: fd, Data: "mine"})
	holder.must(call{Op: "close", FD: fd})
	if got := v.read("f"); got != "mine" {
		t.Errorf("the file holds %q", got)
	}
}

// Two names before it is opened; the one by which it was opened is removed, or
// replaced. The one that is left is locked.
func TestRemovedNameLeavesTheOtherLocked(t *testing.T) {
	for _, replace := range []bool{false, true} {
		v := newVolume(t, "--name-wait", "100ms")
		v.inMemory()
		a, b := v.mount("a"), v.mount("b")
		v.write("f", "")
		v.write("new", "")
		v.write("other", "")
		if err := os.Link(v.inSource("f"), v.inSource("g")); err != nil {
			t.Fatal(err)
		}
		holder, p := newAgent(t), newAgent(t)
		fd := holder.open(a.path("f"), wronly)
		remove := call{Op: "unlink", Path: a.path("f")}
		if replace {
			remove = call{Op: "rename", Path: a.path("new"), Path2: a.path("f")}
		}
		holder.fails(remove, unix.EBUSY) // the mount has not heard of g
		holder.must(call{Op: "mode", Path: a.path("g")})
		holder.must(remove)
		for _, m := range []*mount{a, b} {
			refusedAll(t, p, m, "g")
		}
		p.must(call{Op: "close", FD: p.open(b.path("f"), wronly|create)})
		holder.must(call{Op: "write", FD: fd, Data: "mine"})
		holder.must(call{Op: "close", FD: fd})
		if got := v.read("g"); got != "mine" {
			t.Errorf("the file holds %q", got)
		}
		p.must(call{Op: "close", FD: p.open(b.path("g"), wronly)})
	}
}

// The holder links its file while another waits in open for it: whoever comes
// by the new name waits for both.
func TestLinkedDuringWait(t *testing.T) {
	over(t, testLinkedDuringWait, local, inLeases.forLong(), overClients.forLong(), overClientsThatDoubt, onNetworkVolume)
}

func testLinkedDuringWait(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1", "--name-wait", "100ms")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	v.write("other", "")
	holder, waiter, p := newAgent(t), newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly)
	pending := waiter.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
	v.waitFor("f")
	holder.must(call{Op: "link", Path: a.path("f"), Path2: a.path("g")})
	holder.must(call{Op: "close", FD: fd})
	if r := await(t, "open", pending); r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	for _, m := range []*mount{a, b} {
		refusedAll(t, p, m, "f", "g")
	}
}

// A file made without a name is locked by the name it gets.
func TestTmpfile(t *testing.T) {
	v := newVolume(t, "--name-wait", "100ms")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("other", "")
	holder, p := newAgent(t), newAgent(t)
	fd := holder.open(a.dir, rdwr|unix.O_TMPFILE)
	holder.must(call{Op: "write", FD: fd, Data: "no name"})
	holder.must(call{Op: "ftruncate", FD: fd, Off: 2})
	holder.must(call{Op: "name", FD: fd, Path: a.path("f")})
	for _, m := range []*mount{a, b} {
		refusedAll(t, p, m, "f")
	}
	holder.must(call{Op: "name", FD: fd, Path: a.path("g")})
	refusedAll(t, p, b, "f", "g")
	holder.must(call{Op: "close", FD: fd})
	if got := v.read("f"); got != "no" {
		t.Errorf("the file holds %q", got)
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })

	fd = holder.open(a.dir, wronly|unix.O_TMPFILE|unix.O_EXCL)
	holder.fails(call{Op: "name", FD: fd, Path: a.path("never")}, unix.ENOENT)
}

// When one of the locks of a file that is open by two of its names is lost, so
// is the file: the other lock would not follow its names any more.
func TestOneLockOfTwoIsLost(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	v.write("f", "")
	if err := os.Link(v.inSource("f"), v.inSource("g")); err != nil {
		t.Fatal(err)
	}
	p, etcd := newAgent(t), v.etcd()
	f, g := p.open(a.path("f"), wronly), p.open(a.path("g"), wronly)
	eventually(t, "the lost lock is missed", func() bool { // entries are watched from when they are a second old
		if _, err := etcd.Delete(t.Context(), "/locks/default/source/f//", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		return p.do(call{Op: "write", FD: f, Data: "-"}).Errno == unix.EIO
	})
	eventually(t, "the file is another to the kernel", func() bool {
		r := p.do(call{Op: "open", Path: a.path("f"), Flags: wronly | nonblock})
		return r.Errno == unix.EAGAIN || r.Errno == unix.EBUSY || r.Errno == 0
	})
	p.fails(call{Op: "write", FD: g, Data: "x"}, unix.EIO)
}
