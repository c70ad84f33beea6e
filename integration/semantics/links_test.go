package semantics

import (
	"os"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// refusedAll makes the calls by which another owner would change the file under
// any of its names, and expects all to be refused.
func refusedAll(t *testing.T, p *lab.Agent, m *lab.Mount, names ...string) {
	t.Helper()
	for _, name := range names {
		path := m.Path(name)
		for _, c := range []lab.Call{
			{Op: "open", Path: path, Flags: unix.O_WRONLY | unix.O_NONBLOCK},
			{Op: "open", Path: path, Flags: unix.O_RDONLY | unix.O_TRUNC | unix.O_NONBLOCK},
			{Op: "truncate", Path: path},
			{Op: "unlink", Path: path},
			{Op: "rename", Path: path, Path2: m.Path("elsewhere")},
			{Op: "rename", Path: m.Path("other"), Path2: path},
			{Op: "link", Path: path, Path2: m.Path("elsewhere")},
		} {
			if r := p.InTime(c); r.Errno != unix.EBUSY && r.Errno != unix.EAGAIN {
				t.Errorf("on %s: %s %s: %v, want EBUSY", m.Name, c.Op, name, r.Err())
			}
		}
	}
}

// A file with several names is one file: the lock of one excludes the others,
// on every mount.
func TestHardLinksAreOneFile(t *testing.T) {
	lab.Over(t, testHardLinksAreOneFile, lab.Local, lab.OverClients.ForLong(), lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testHardLinksAreOneFile(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "100ms")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	v.Write("other", "")
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		t.Fatal(err)
	}
	holder, p := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY)
	for _, m := range []*lab.Mount{a, b} {
		refusedAll(t, p, m, "f", "g")
	}
	// Its own program is not concerned.
	own := holder.Open(a.Path("g"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "close", FD: own})
	holder.Must(lab.Call{Op: "link", Path: a.Path("g"), Path2: a.Path("h")})
	holder.Must(lab.Call{Op: "rename", Path: a.Path("g"), Path2: a.Path("i")})
	refusedAll(t, p, b, "f", "h", "i")
	holder.Must(lab.Call{Op: "close", FD: fd})
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
	p.Must(lab.Call{Op: "close", FD: p.Open(b.Path("i"), unix.O_WRONLY)})
}

// A file gets its second name while it is open, and loses its first.
func TestLinkWhileOpen(t *testing.T) { lab.Over(t, testLinkWhileOpen, lab.Local, lab.OnNetworkVolume) }

func testLinkWhileOpen(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "100ms")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("other", "")
	holder, p := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("tmp"), unix.O_WRONLY|unix.O_CREAT)
	holder.Must(lab.Call{Op: "link", Path: a.Path("tmp"), Path2: a.Path("f")})
	for _, m := range []*lab.Mount{a, b} {
		refusedAll(t, p, m, "tmp", "f")
	}
	holder.Must(lab.Call{Op: "unlink", Path: a.Path("tmp")})
	for _, m := range []*lab.Mount{a, b} {
		refusedAll(t, p, m, "f")
	}
	// The name it lost is anybody's.
	p.Must(lab.Call{Op: "close", FD: p.OnceFree(lab.Call{Op: "open", Path: b.Path("tmp"), Flags: unix.O_WRONLY | unix.O_CREAT})})
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "mine"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "mine" {
		t.Errorf("the file holds %q", got)
	}
}

// Two names before it is opened; the one by which it was opened is removed, or
// replaced. The one that is left is locked.
func TestRemovedNameLeavesTheOtherLocked(t *testing.T) {
	t.Parallel()
	for _, replace := range []bool{false, true} {
		v := lab.NewVolume(t, "--name-wait", "100ms")
		a, b := v.Mount("a"), v.Mount("b")
		v.Write("f", "")
		v.Write("new", "")
		v.Write("other", "")
		if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
			t.Fatal(err)
		}
		holder, p := lab.NewAgent(t), lab.NewAgent(t)
		fd := holder.Open(a.Path("f"), unix.O_WRONLY)
		remove := lab.Call{Op: "unlink", Path: a.Path("f")}
		if replace {
			remove = lab.Call{Op: "rename", Path: a.Path("new"), Path2: a.Path("f")}
		}
		holder.Fails(remove, unix.EBUSY) // the mount has not heard of g
		holder.Must(lab.Call{Op: "mode", Path: a.Path("g")})
		holder.Must(remove)
		for _, m := range []*lab.Mount{a, b} {
			refusedAll(t, p, m, "g")
		}
		p.Must(lab.Call{Op: "close", FD: p.OnceFree(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT})})
		holder.Must(lab.Call{Op: "write", FD: fd, Data: "mine"})
		holder.Must(lab.Call{Op: "close", FD: fd})
		if got := v.Read("g"); got != "mine" {
			t.Errorf("the file holds %q", got)
		}
		p.Must(lab.Call{Op: "close", FD: p.Open(b.Path("g"), unix.O_WRONLY)})
	}
}

// The holder links its file while another waits in open for it: whoever comes
// by the new name waits for both.
func TestLinkedDuringWait(t *testing.T) {
	lab.Over(t, testLinkedDuringWait, lab.Local, lab.InLeases.ForLong(), lab.OverClients.ForLong(), lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testLinkedDuringWait(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--name-wait", "100ms")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	v.Write("other", "")
	holder, waiter, p := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY)
	pending := waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	holder.Must(lab.Call{Op: "link", Path: a.Path("f"), Path2: a.Path("g")})
	holder.Must(lab.Call{Op: "close", FD: fd})
	if r := lab.Await(t, "open", pending); r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	for _, m := range []*lab.Mount{a, b} {
		refusedAll(t, p, m, "f", "g")
	}
}

// Another mount takes one of its names from a file. A truncation by that name does not follow
// the file to the other name. One by a descriptor is of the file.
func TestTruncateByALostName(t *testing.T) {
	lab.Over(t, testTruncateByALostName, lab.Local, lab.OverClients.ForLong(), lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testTruncateByALostName(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "data")
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		t.Fatal(err)
	}
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(b.Path("f"), unix.O_RDONLY)
	p.Must(lab.Call{Op: "mode", Path: b.Path("g")})
	other.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("away")})
	p.Fails(lab.Call{Op: "truncate", Path: b.Path("f")}, unix.ENOENT)
	if got := v.Read("g"); got != "data" {
		t.Errorf("the file holds %q", got)
	}
	p.Must(lab.Call{Op: "truncate", Path: b.Path("g"), Off: 3})
	p.Must(lab.Call{Op: "truncate", Path: lab.ProcFD(fd), Off: 2})
	if got := v.Read("g"); got != "da" {
		t.Errorf("the file holds %q", got)
	}
}

// A file made without a name is locked by the name it gets.
func TestTmpfile(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--name-wait", "100ms")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("other", "")
	holder, p := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Dir, unix.O_RDWR|unix.O_TMPFILE)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "no name"})
	holder.Must(lab.Call{Op: "ftruncate", FD: fd, Off: 2})
	holder.Must(lab.Call{Op: "name", FD: fd, Path: a.Path("f")})
	for _, m := range []*lab.Mount{a, b} {
		refusedAll(t, p, m, "f")
	}
	holder.Must(lab.Call{Op: "name", FD: fd, Path: a.Path("g")})
	refusedAll(t, p, b, "f", "g")
	holder.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "no" {
		t.Errorf("the file holds %q", got)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })

	fd = holder.Open(a.Dir, unix.O_WRONLY|unix.O_TMPFILE|unix.O_EXCL)
	holder.Fails(lab.Call{Op: "name", FD: fd, Path: a.Path("never")}, unix.ENOENT)
}

// When one of the locks of a file that is open by two of its names is lost, so
// is the file: the other lock would not follow its names any more.
func TestOneLockOfTwoIsLost(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", "")
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		t.Fatal(err)
	}
	p, etcd := lab.NewAgent(t), v.Etcd()
	f, g := p.Open(a.Path("f"), unix.O_WRONLY), p.Open(a.Path("g"), unix.O_WRONLY)
	lab.Eventually(t, "the lost lock is missed", func() bool { // entries are watched from when they are a second old
		if _, err := etcd.Delete(t.Context(), "/locks/default/source/f//", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		return p.Do(lab.Call{Op: "write", FD: f, Data: "-"}).Errno == unix.EIO
	})
	lab.Eventually(t, "the file is another to the kernel", func() bool {
		r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
		return r.Errno == unix.EAGAIN || r.Errno == unix.EBUSY || r.Errno == 0
	})
	p.Fails(lab.Call{Op: "write", FD: g, Data: "x"}, unix.EIO)
}
