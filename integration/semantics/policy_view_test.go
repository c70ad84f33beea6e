package semantics

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A file that needs no lock is written by all at once, and by a mount that has
// lost the lock service too. Appended lines stay whole.
func TestUnlockedFiles(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--rule", "*.log nolock", "--rule", "/scratch/** nolock")
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("scratch")})
	locked := p.Open(a.Path("locked"), unix.O_WRONLY|unix.O_CREAT)
	of := make(map[*lab.Agent]int)
	for _, name := range []string{"f.log", "scratch/f"} {
		of[p] = p.Open(a.Path(name), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
		of[q] = q.Open(b.Path(name), unix.O_RDWR|unix.O_APPEND|unix.O_NONBLOCK)
		for range 100 {
			first := p.Start(lab.Call{Op: "write", FD: of[p], Data: "from p\n"})
			q.Must(lab.Call{Op: "write", FD: of[q], Data: "from q\n"})
			if r := lab.Await(t, "the other's write", first); r.Err() != nil {
				t.Fatal(r.Err())
			}
		}
		if got := v.Read(name); strings.Count(got, "from p\n") != 100 || strings.Count(got, "from q\n") != 100 || len(got) != 1400 {
			t.Errorf("%s has %d bytes", name, len(got))
		}
		q.Must(lab.Call{Op: "truncate", Path: b.Path(name), N: 7})
		q.Must(lab.Call{Op: "ftruncate", FD: of[q], N: 0})
		q.Must(lab.Call{Op: "fallocate", FD: of[q], N: 4096})
		q.Must(lab.Call{Op: "rename", Path: b.Path(name), Path2: b.Path("scratch/g.log")})
		p.Must(lab.Call{Op: "link", Path: a.Path("scratch/g.log"), Path2: a.Path("scratch/h")})
		p.Must(lab.Call{Op: "unlink", Path: a.Path("scratch/g.log")})
		q.Must(lab.Call{Op: "unlink", Path: b.Path("scratch/h")})
		p.Must(lab.Call{Op: "close", FD: of[p]})
		q.Must(lab.Call{Op: "close", FD: of[q]})
	}
	v.AwaitLocked("locked")
	fd := p.Open(a.Path("f.log"), unix.O_WRONLY|unix.O_CREAT)
	etcd := v.EtcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	lab.Freeze(t, etcd)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("new.log"), unix.O_WRONLY|unix.O_CREAT)})
	p.Must(lab.Call{Op: "link", Path: a.Path("new.log"), Path2: a.Path("scratch/new")})
	p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("scratch/new"), unix.O_WRONLY)}) // of two names
	p.Must(lab.Call{Op: "unlink", Path: a.Path("new.log")})
	if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.Must(lab.Call{Op: "write", FD: locked, Data: "x"})
}

// No file comes from a path that needs no lock to one that is locked, or the
// other way: whoever has it open for write without a lock would go on.
func TestFilesKeepTheirKindOfLock(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--rule", "*.log nolock", "--rule", "/scratch/** nolock")
	m := v.Mount("m")
	p := lab.NewAgent(t)
	for _, dir := range []string{"scratch", "scratch/d", "d"} {
		p.Must(lab.Call{Op: "mkdir", Path: m.Path(dir)})
	}
	for _, name := range []string{"f", "x.log", "d/f", "d/x.log", "scratch/f"} {
		v.Write(name, name)
	}
	for _, c := range [][2]string{
		{"f", "f.log"}, {"x.log", "x"}, {"scratch/f", "h"}, {"f", "scratch/g"}, {"d/x.log", "d/x"},
	} {
		for _, op := range []string{"rename", "link"} {
			if r := p.InTime(lab.Call{Op: op, Path: m.Path(c[0]), Path2: m.Path(c[1])}); r.Errno != unix.EXDEV {
				t.Errorf("%s of %s to %s: %v, want EXDEV", op, c[0], c[1], r.Err())
			}
		}
	}
	for _, c := range [][2]string{{"scratch/d", "e"}, {"d", "scratch/e"}, {"scratch", "e"}} {
		if r := p.InTime(lab.Call{Op: "rename", Path: m.Path(c[0]), Path2: m.Path(c[1])}); r.Errno != unix.EXDEV {
			t.Errorf("rename of directory %s to %s: %v, want EXDEV", c[0], c[1], r.Err())
		}
	}
	// Where the rules are the same, all is as ever.
	p.Must(lab.Call{Op: "rename", Path: m.Path("d"), Path2: m.Path("e")})
	p.Must(lab.Call{Op: "rename", Path: m.Path("scratch/d"), Path2: m.Path("scratch/e")})
	p.Must(lab.Call{Op: "rename", Path: m.Path("e/x.log"), Path2: m.Path("scratch/x")})
	p.Must(lab.Call{Op: "rename", Path: m.Path("e/f"), Path2: m.Path("f")})
	lab.Run(t, "mv", m.Path("f"), m.Path("scratch/moved")) // mv copies
	if v.Read("scratch/moved") != "d/f" || v.Read("scratch/x") != "d/x.log" {
		t.Error("the files have changed")
	}
}

// What is read-only through the view is as on a file system that is mounted
// read-only; its readers notice nothing.
func TestReadOnlyFiles(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--rule", "/etc/*.local lock", "--rule", "/etc/** readonly")
	if err := os.MkdirAll(v.Source+"/etc/d", 0o777); err != nil {
		t.Fatal(err)
	}
	v.Write("etc/f", "content")
	v.Write("g", "")
	m := v.Mount("m")
	p := lab.NewAgent(t)
	etc, f, d, g := m.Path("etc"), m.Path("etc/f"), m.Path("etc/d"), m.Path("g")
	fd := p.Open(f, 0)
	if r := p.Do(lab.Call{Op: "pread", FD: fd, N: 100}); r.Data != "content" {
		t.Errorf("read %q", r.Data)
	}
	for _, c := range []lab.Call{
		{Op: "open", Path: f, Flags: unix.O_WRONLY},
		{Op: "open", Path: f, Flags: unix.O_RDWR},
		{Op: "open", Path: f, Flags: unix.O_TRUNC},
		{Op: "open", Path: etc + "/new", Flags: unix.O_WRONLY | unix.O_CREAT},
		{Op: "truncate", Path: f, N: 1},
		{Op: "unlink", Path: f},
		{Op: "rename", Path: f, Path2: g},
		{Op: "rename", Path: g, Path2: f},
		{Op: "rename", Path: g, Path2: etc + "/new"},
		{Op: "rename", Path: d, Path2: m.Path("d")},
		{Op: "link", Path: f, Path2: m.Path("link")},
		{Op: "link", Path: g, Path2: etc + "/new"},
		{Op: "mkdir", Path: etc + "/new"},
		{Op: "rmdir", Path: d},
		{Op: "chmod", Path: f, Mode: 0o600},
		{Op: "chown", Path: f, Off: 1, N: 1},
		{Op: "utimes", Path: f, Off: 1},
		{Op: "setxattr", Path: f, Path2: "user.a", Data: "61"},
		{Op: "removexattr", Path: f, Path2: "user.a"},
		{Op: "setflags", FD: fd, N: 0x40},
	} {
		if r := p.Do(c); r.Errno != unix.EROFS {
			t.Errorf("%s %s %s: %v, want EROFS", c.Op, c.Path, c.Path2, r.Err())
		}
	}
	for _, err := range []error{
		unix.Mknod(etc+"/new", unix.S_IFIFO|0o666, 0), unix.Symlink("x", etc+"/new"),
	} {
		if err != unix.EROFS {
			t.Errorf("mknod, symlink: %v, want EROFS", err)
		}
	}
	// The directory would take them along to where they could be changed.
	p.Fails(lab.Call{Op: "rename", Path: etc, Path2: m.Path("moved")}, unix.EXDEV)
	// A rule before it makes an exception.
	p.Must(lab.Call{Op: "close", FD: p.Open(etc+"/f.local", unix.O_WRONLY|unix.O_CREAT)})
	if names, err := os.ReadDir(v.Source + "/etc"); len(names) != 3 || err != nil || v.Read("etc/f") != "content" {
		t.Errorf("%v, %v, %q", names, err, v.Read("etc/f"))
	}
	if status := m.Stop(); status != 0 || strings.Contains(m.Log.String(), "matched nothing") {
		t.Errorf("exit status %d, and the log says:\n%s", status, m.Log)
	}
}

// A rule has a wait and a scope of its own, and applies to readers too.
func TestWaitAndScopeOfRule(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1", "--rule", "/now lock wait=0", "--rule", "/shared lock scope=node", "--rule", "/linked/** lock scope=node", "--rule", "/read readonly")
	v.Write("read", "")
	if err := os.Mkdir(v.InSource("linked"), 0o755); err != nil {
		t.Fatal(err)
	}
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	p.Open(a.Path("now"), unix.O_WRONLY|unix.O_CREAT)
	p.Open(a.Path("shared"), unix.O_WRONLY|unix.O_CREAT)
	p.Open(a.Path("other"), unix.O_WRONLY|unix.O_CREAT)
	q.Fails(lab.Call{Op: "open", Path: a.Path("now"), Flags: unix.O_WRONLY}, unix.EBUSY)
	q.Fails(lab.Call{Op: "open", Path: b.Path("now"), Flags: unix.O_WRONLY}, unix.EBUSY)
	q.Must(lab.Call{Op: "close", FD: q.Open(a.Path("shared"), unix.O_WRONLY)})
	q.Fails(lab.Call{Op: "open", Path: a.Path("other"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	q.Fails(lab.Call{Op: "open", Path: b.Path("shared"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	q.Must(lab.Call{Op: "truncate", Path: a.Path("shared")}) // calls act in the rule's scope too
	// A call on two names acts in the scope of the first, or without that in the mount's.
	fd := p.Open(a.Path("mine"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "link", Path: a.Path("mine"), Path2: a.Path("linked/mine")})
	p.Must(lab.Call{Op: "write", FD: fd, Data: "mine"})
	q.Fails(lab.Call{Op: "open", Path: a.Path("linked/mine"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	fd = p.Open(a.Dir, unix.O_WRONLY|unix.O_TMPFILE)
	p.Must(lab.Call{Op: "name", FD: fd, Path: a.Path("linked/named")})
	p.Must(lab.Call{Op: "write", FD: fd, Data: "mine"})
	q.Open(a.Path("read"), 0)
	a.Stop()
	if strings.Contains(a.Log.String(), "matched nothing") {
		t.Errorf("a rule was not seen:\n%s", a.Log)
	}
}
