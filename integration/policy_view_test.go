package integration

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that needs no lock is written by all at once, and by a mount that has
// lost the lock service too. Appended lines stay whole.
func TestUnlockedFiles(t *testing.T) {
	v := newVolume(t, "--rule", "*.log nolock", "--rule", "/scratch/** nolock")
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	p.must(call{Op: "mkdir", Path: a.path("scratch")})
	locked := p.open(a.path("locked"), wronly|create)
	of := make(map[*agent]int)
	for _, name := range []string{"f.log", "scratch/f"} {
		of[p] = p.open(a.path(name), wronly|create|unix.O_APPEND)
		of[q] = q.open(b.path(name), unix.O_RDWR|unix.O_APPEND|nonblock)
		for range 100 {
			first := p.start(call{Op: "write", FD: of[p], Data: "from p\n"})
			q.must(call{Op: "write", FD: of[q], Data: "from q\n"})
			if r := await(t, "the other's write", first); r.Err() != nil {
				t.Fatal(r.Err())
			}
		}
		if got := v.read(name); strings.Count(got, "from p\n") != 100 || strings.Count(got, "from q\n") != 100 || len(got) != 1400 {
			t.Errorf("%s has %d bytes", name, len(got))
		}
		q.must(call{Op: "truncate", Path: b.path(name), N: 7})
		q.must(call{Op: "ftruncate", FD: of[q], N: 0})
		q.must(call{Op: "fallocate", FD: of[q], N: 4096})
		q.must(call{Op: "rename", Path: b.path(name), Path2: b.path("scratch/g.log")})
		p.must(call{Op: "link", Path: a.path("scratch/g.log"), Path2: a.path("scratch/h")})
		p.must(call{Op: "unlink", Path: a.path("scratch/g.log")})
		q.must(call{Op: "unlink", Path: b.path("scratch/h")})
		p.must(call{Op: "close", FD: of[p]})
		q.must(call{Op: "close", FD: of[q]})
	}
	if es := v.ls(); len(es) != 1 || es[0].Path != "locked" {
		t.Errorf("locks: %+v", es)
	}
	fd := p.open(a.path("f.log"), wronly|create)
	etcd := v.etcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	freeze(t, etcd)
	p.must(call{Op: "write", FD: fd, Data: "x"})
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "close", FD: p.open(a.path("new.log"), wronly|create)})
	p.must(call{Op: "link", Path: a.path("new.log"), Path2: a.path("scratch/new")})
	p.must(call{Op: "close", FD: p.open(a.path("scratch/new"), wronly)}) // of two names
	p.must(call{Op: "unlink", Path: a.path("new.log")})
	if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.must(call{Op: "write", FD: locked, Data: "x"})
}

// No file comes from a path that needs no lock to one that is locked, or the
// other way: whoever has it open for write without a lock would go on.
func TestFilesKeepTheirKindOfLock(t *testing.T) {
	v := newVolume(t, "--rule", "*.log nolock", "--rule", "/scratch/** nolock")
	m := v.mount("m")
	p := newAgent(t)
	for _, dir := range []string{"scratch", "scratch/d", "d"} {
		p.must(call{Op: "mkdir", Path: m.path(dir)})
	}
	for _, name := range []string{"f", "x.log", "d/f", "d/x.log", "scratch/f"} {
		v.write(name, name)
	}
	for _, c := range [][2]string{
		{"f", "f.log"}, {"x.log", "x"}, {"scratch/f", "h"}, {"f", "scratch/g"}, {"d/x.log", "d/x"},
	} {
		for _, op := range []string{"rename", "link"} {
			if r := p.do(call{Op: op, Path: m.path(c[0]), Path2: m.path(c[1])}); r.Errno != unix.EXDEV {
				t.Errorf("%s of %s to %s: %v, want EXDEV", op, c[0], c[1], r.Err())
			}
		}
	}
	for _, c := range [][2]string{{"scratch/d", "e"}, {"d", "scratch/e"}, {"scratch", "e"}} {
		if r := p.do(call{Op: "rename", Path: m.path(c[0]), Path2: m.path(c[1])}); r.Errno != unix.EXDEV {
			t.Errorf("rename of directory %s to %s: %v, want EXDEV", c[0], c[1], r.Err())
		}
	}
	// Where the rules are the same, all is as ever.
	p.must(call{Op: "rename", Path: m.path("d"), Path2: m.path("e")})
	p.must(call{Op: "rename", Path: m.path("scratch/d"), Path2: m.path("scratch/e")})
	p.must(call{Op: "rename", Path: m.path("e/x.log"), Path2: m.path("scratch/x")})
	p.must(call{Op: "rename", Path: m.path("e/f"), Path2: m.path("f")})
	run(t, "mv", m.path("f"), m.path("scratch/moved")) // mv copies
	if v.read("scratch/moved") != "d/f" || v.read("scratch/x") != "d/x.log" {
		t.Error("the files have changed")
	}
}

// What is read-only through the view is as on a file system that is mounted
// read-only; its readers notice nothing.
func TestReadOnlyFiles(t *testing.T) {
	v := newVolume(t, "--rule", "/etc/*.local lock", "--rule", "/etc/** readonly")
	if err := os.MkdirAll(v.source+"/etc/d", 0o777); err != nil {
		t.Fatal(err)
	}
	v.write("etc/f", "content")
	v.write("g", "")
	m := v.mount("m")
	p := newAgent(t)
	etc, f, d, g := m.path("etc"), m.path("etc/f"), m.path("etc/d"), m.path("g")
	fd := p.open(f, 0)
	if r := p.do(call{Op: "pread", FD: fd, N: 100}); r.Data != "content" {
		t.Errorf("read %q", r.Data)
	}
	for _, c := range []call{
		{Op: "open", Path: f, Flags: wronly},
		{Op: "open", Path: f, Flags: unix.O_RDWR},
		{Op: "open", Path: f, Flags: unix.O_TRUNC},
		{Op: "open", Path: etc + "/new", Flags: wronly | create},
		{Op: "truncate", Path: f, N: 1},
		{Op: "unlink", Path: f},
		{Op: "rename", Path: f, Path2: g},
		{Op: "rename", Path: g, Path2: f},
		{Op: "rename", Path: g, Path2: etc + "/new"},
		{Op: "rename", Path: d, Path2: m.path("d")},
		{Op: "link", Path: f, Path2: m.path("link")},
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
		if r := p.do(c); r.Errno != unix.EROFS {
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
	p.fails(call{Op: "rename", Path: etc, Path2: m.path("moved")}, unix.EXDEV)
	// A rule before it makes an exception.
	p.must(call{Op: "close", FD: p.open(etc+"/f.local", wronly|create)})
	if names, err := os.ReadDir(v.source + "/etc"); len(names) != 3 || err != nil || v.read("etc/f") != "content" {
		t.Errorf("%v, %v, %q", names, err, v.read("etc/f"))
	}
	if status := m.stop(); status != 0 || strings.Contains(m.log.String(), "matched nothing") {
		t.Errorf("exit status %d, and the log says:\n%s", status, m.log)
	}
}

// A rule has a wait and a scope of its own, and is met by who only reads too.
func TestWaitAndScopeOfRule(t *testing.T) {
	v := newVolume(t, "--wait", "-1", "--rule", "/now lock wait=0", "--rule", "/shared lock scope=node", "--rule", "/read readonly")
	v.write("read", "")
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	p.open(a.path("now"), wronly|create)
	p.open(a.path("shared"), wronly|create)
	p.open(a.path("other"), wronly|create)
	q.fails(call{Op: "open", Path: a.path("now"), Flags: wronly}, unix.EBUSY)
	q.fails(call{Op: "open", Path: b.path("now"), Flags: wronly}, unix.EBUSY)
	q.must(call{Op: "close", FD: q.open(a.path("shared"), wronly)})
	q.fails(call{Op: "open", Path: a.path("other"), Flags: wronly | nonblock}, unix.EAGAIN)
	q.fails(call{Op: "open", Path: b.path("shared"), Flags: wronly | nonblock}, unix.EAGAIN)
	q.must(call{Op: "truncate", Path: a.path("shared")}) // calls act in the rule's scope too
	q.open(a.path("read"), 0)
	a.stop()
	if strings.Contains(a.log.String(), "matched nothing") {
		t.Errorf("a rule was not seen:\n%s", a.log)
	}
}
