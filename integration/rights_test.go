package integration

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/longtest"
)

// A file is given to another owner behind the view, whose kernel believes it to
// be the first one's. The volume decides, at the instant of the call: also for a
// root that has no capabilities, as in a container.
func TestTakenFromItsOwner(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	const group = 2000
	root, user, poor := newAgent(t), v.newUser(1000, group), v.newUser(0, group)
	poor.must(call{Op: "drop"})
	sticky := v.inSource("sticky")
	if err := errors.Join(os.Mkdir(sticky, 0o777), unix.Chmod(sticky, 0o1777), os.Chown(sticky, 5, 5)); err != nil {
		t.Fatal(err)
	}
	const noDump, extents = 0x40, 0x80000 // ext4 says the latter of each file
	calls := map[string]func(path string, fd int) call{
		"chmod":        func(p string, _ int) call { return call{Op: "chmod", Path: p, Mode: 0o4755} },
		"chgrp":        func(p string, _ int) call { return call{Op: "chown", Path: p, Off: -1, N: group} },
		"utimes":       func(p string, _ int) call { return call{Op: "utimes", Path: p, Off: 1000} },
		"setfacl":      func(p string, _ int) call { return call{Op: "setxattr", Path: p, Path2: aclAccess, Data: acl(1000)} },
		"setfacl -b":   func(p string, _ int) call { return call{Op: "removexattr", Path: p, Path2: aclAccess} },
		"setxattr":     func(p string, _ int) call { return call{Op: "setxattr", Path: p, Path2: "user.x", Data: "02"} },
		"removexattr":  func(p string, _ int) call { return call{Op: "removexattr", Path: p, Path2: "user.x"} },
		"getxattr":     func(p string, _ int) call { return call{Op: "getxattr", Path: p, Path2: "user.x"} },
		"chattr":       func(_ string, fd int) call { return call{Op: "setflags", FD: fd, Flags: noDump | extents} },
		"truncate":     func(p string, _ int) call { return call{Op: "truncate", Path: p} },
		"open to read": func(p string, _ int) call { return call{Op: "open", Path: p, Flags: rdonly} },
		"open":         func(p string, _ int) call { return call{Op: "open", Path: p, Flags: wronly} },
		"O_TRUNC":      func(p string, _ int) call { return call{Op: "open", Path: p, Flags: rdonly | trunc} },
		"link":         func(p string, _ int) call { return call{Op: "link", Path: p, Path2: p + "+"} },
		"unlink":       func(p string, _ int) call { return call{Op: "unlink", Path: p} },
		"rename":       func(p string, _ int) call { return call{Op: "rename", Path: p, Path2: p + "-"} },
	}
	files := 0
	for who, c := range map[string]struct {
		p       *agent
		is, new int
	}{"a user": {user, 1000, 0}, "root without capabilities": {poor, 0, 1000}} {
		for what, do := range calls {
			t.Run(who+"/"+what, func(t *testing.T) {
				files++ // each is new to the kernel
				path, through := filepath.Join(sticky, fmt.Sprint(files)), a.path(fmt.Sprint("sticky/", files))
				if err := errors.Join(os.WriteFile(path, []byte("12345678"), 0o644), os.Chown(path, c.is, c.is)); err != nil {
					t.Fatal(err)
				}
				root.must(call{Op: "setxattr", Path: path, Path2: "user.x", Data: "01"})
				root.must(call{Op: "setxattr", Path: path, Path2: aclAccess, Data: acl(1001)})
				fd := c.p.open(through, rdonly)
				if err := errors.Join(os.Chown(path, c.new, c.new), unix.Chmod(path, 0o600)); err != nil {
					t.Fatal(err)
				}
				before := looks(t, path)
				if r := c.p.do(do(through, fd)); r.Errno != unix.EPERM && r.Errno != unix.EACCES {
					t.Errorf("%v, want EPERM or EACCES", r.Err())
				}
				if after := looks(t, path); after != before {
					t.Errorf("it was %s, and is %s", before, after)
				}
				c.p.must(call{Op: "close", FD: fd})
			})
		}
		closed := v.inSource(who)
		if err := errors.Join(os.Mkdir(closed, 0o700), os.Chown(closed, c.is, c.is)); err != nil {
			t.Fatal(err)
		}
		c.p.must(call{Op: "close", FD: c.p.open(a.path(who), rdonly)})
		if err := os.Chown(closed, c.new, c.new); err != nil {
			t.Fatal(err)
		}
		c.p.fails(call{Op: "open", Path: a.path(who), Flags: rdonly}, unix.EACCES)
	}
}

// looks is all that a file's owner may change.
func looks(t *testing.T, path string) string {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	var attrs []string
	for _, name := range []string{"user.x", aclAccess} {
		buf := make([]byte, 256)
		n, err := unix.Getxattr(path, name, buf)
		attrs = append(attrs, fmt.Sprint(hex.EncodeToString(buf[:max(n, 0)]), err))
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	return fmt.Sprintf("%d:%d %o, %d bytes of %d, %d links, %q, flags %x %v",
		st.Uid, st.Gid, st.Mode, st.Size, st.Mtim.Sec, st.Nlink, attrs, flags, err)
}

// Root takes a user's file and gives it back, again and again, while the user
// changes it without a pause on another node. While it is root's, it stays as it is.
func TestRaceForAFile(t *testing.T) {
	v := newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	root := newAgent(t)
	changes := map[string]call{
		"chmod":    {Op: "chmod", Mode: 0o4755},
		"chgrp":    {Op: "chown", Off: -1, N: 2000},
		"utimes":   {Op: "utimes", Off: 1000},
		"setxattr": {Op: "setxattr", Path2: "user.x", Data: "02"},
		"setfacl":  {Op: "setxattr", Path2: aclAccess, Data: acl(1000)},
	}
	each := longtest.For(t) / time.Duration(len(changes))
	for what, c := range changes {
		t.Run(what, func(t *testing.T) {
			v.write(what, "the user's program")
			path := v.inSource(what)
			user := v.newUser(1000, 2000)
			c.Path = a.path(what)
			reset := func() {
				t.Helper()
				_ = unix.Removexattr(path, aclAccess)
				_ = unix.Removexattr(path, "user.x")
				err := errors.Join(unix.Chmod(path, 0o644), unix.Utimes(path, make([]unix.Timeval, 2)), os.Chown(path, 1000, 1000))
				if err != nil {
					t.Fatal(err)
				}
			}
			reset()
			user.must(c)
			user.start(call{Op: "repeat", N: -1, Calls: []call{{Op: "ask", Path: c.Path}, c}})
			for round, end := 0, time.Now().Add(each); round < 200 || time.Now().Before(end); round++ {
				reset()
				root.must(call{Op: "chown", Path: b.path(what)})
				before := looks(t, path)
				root.must(call{Op: "ask", Path: b.path(what)}) // some time
				var st unix.Stat_t
				if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_ISUID != 0 {
					t.Fatalf("%v: it is root's, and has mode %o", err, st.Mode)
				}
				if after := looks(t, path); after != before {
					t.Fatalf("it is root's, was %s, and is %s", before, after)
				}
			}
			user.kill()
		})
	}
}

// What a program may be is more than what may be read, and less than what root may.
func TestRunWithoutReading(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	program, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	v.write("id", string(program))
	user := v.newUser(1000, 0)
	for mode, want := range map[uint32]bool{0o711: true, 0o710: false, 0o744: false} {
		if err := unix.Chmod(v.inSource("id"), mode); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the mode counts", func() bool { // within the second that attributes are believed
			cmd := exec.Command(a.path("id"), "-u")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			out, err := cmd.Output()
			return (err == nil) == want && (string(out) == "1000\n") == want
		})
		r := user.do(call{Op: "open", Path: a.path("id"), Flags: rdonly})
		if readable := mode&0o4 != 0; (r.Errno == 0) != readable {
			t.Errorf("mode %o: open to read: %v", mode, r.Err())
		}
	}
	// The kernel opens a file for the flags of one that may be written only.
	v.write("f", "")
	if err := errors.Join(os.Chown(v.inSource("f"), 1000, 1000), unix.Chmod(v.inSource("f"), 0o200)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{v.source, a.dir} {
		user.must(call{Op: "getflags", FD: user.open(filepath.Join(dir, "f"), wronly)})
	}
}
