package semantics

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

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// A file is given to another owner behind the view, whose kernel believes it to
// be the first one's. The volume decides, at the instant of the call: also for a
// root that has no capabilities, as in a container.
func TestTakenFromItsOwner(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const group = 2000
	root, user, poor := lab.NewAgent(t), v.NewUser(1000, group), v.NewUser(0, group)
	poor.Must(lab.Call{Op: "drop"})
	sticky := v.InSource("sticky")
	if err := errors.Join(os.Mkdir(sticky, 0o777), unix.Chmod(sticky, 0o1777), os.Chown(sticky, 5, 5)); err != nil {
		t.Fatal(err)
	}
	const noDump, extents = 0x40, 0x80000 // ext4 says the latter of each file
	calls := map[string]func(path string, fd int) lab.Call{
		"chmod":  func(p string, _ int) lab.Call { return lab.Call{Op: "chmod", Path: p, Mode: 0o4755} },
		"chgrp":  func(p string, _ int) lab.Call { return lab.Call{Op: "chown", Path: p, Off: -1, N: group} },
		"utimes": func(p string, _ int) lab.Call { return lab.Call{Op: "utimes", Path: p, Off: 1000} },
		"setfacl": func(p string, _ int) lab.Call {
			return lab.Call{Op: "setxattr", Path: p, Path2: lab.ACLAccess, Data: lab.ACL(1000)}
		},
		"setfacl -b":   func(p string, _ int) lab.Call { return lab.Call{Op: "removexattr", Path: p, Path2: lab.ACLAccess} },
		"setxattr":     func(p string, _ int) lab.Call { return lab.Call{Op: "setxattr", Path: p, Path2: "user.x", Data: "02"} },
		"removexattr":  func(p string, _ int) lab.Call { return lab.Call{Op: "removexattr", Path: p, Path2: "user.x"} },
		"getxattr":     func(p string, _ int) lab.Call { return lab.Call{Op: "getxattr", Path: p, Path2: "user.x"} },
		"chattr":       func(_ string, fd int) lab.Call { return lab.Call{Op: "setflags", FD: fd, Flags: noDump | extents} },
		"truncate":     func(p string, _ int) lab.Call { return lab.Call{Op: "truncate", Path: p} },
		"open to read": func(p string, _ int) lab.Call { return lab.Call{Op: "open", Path: p, Flags: unix.O_RDONLY} },
		"open":         func(p string, _ int) lab.Call { return lab.Call{Op: "open", Path: p, Flags: unix.O_WRONLY} },
		"O_TRUNC": func(p string, _ int) lab.Call {
			return lab.Call{Op: "open", Path: p, Flags: unix.O_RDONLY | unix.O_TRUNC}
		},
		"link":   func(p string, _ int) lab.Call { return lab.Call{Op: "link", Path: p, Path2: p + "+"} },
		"unlink": func(p string, _ int) lab.Call { return lab.Call{Op: "unlink", Path: p} },
		"rename": func(p string, _ int) lab.Call { return lab.Call{Op: "rename", Path: p, Path2: p + "-"} },
	}
	files := 0
	for who, c := range map[string]struct {
		p       *lab.Agent
		is, new int
	}{"a user": {user, 1000, 0}, "root without capabilities": {poor, 0, 1000}} {
		for what, do := range calls {
			t.Run(who+"/"+what, func(t *testing.T) {
				files++ // each is new to the kernel
				path, through := filepath.Join(sticky, fmt.Sprint(files)), a.Path(fmt.Sprint("sticky/", files))
				if err := errors.Join(os.WriteFile(path, []byte("12345678"), 0o644), os.Chown(path, c.is, c.is)); err != nil {
					t.Fatal(err)
				}
				root.Must(lab.Call{Op: "setxattr", Path: path, Path2: "user.x", Data: "01"})
				root.Must(lab.Call{Op: "setxattr", Path: path, Path2: lab.ACLAccess, Data: lab.ACL(1001)})
				fd := c.p.Open(through, unix.O_RDONLY)
				if err := errors.Join(os.Chown(path, c.new, c.new), unix.Chmod(path, 0o600)); err != nil {
					t.Fatal(err)
				}
				before := looks(t, path)
				if r := c.p.InTime(do(through, fd)); r.Errno != unix.EPERM && r.Errno != unix.EACCES {
					t.Errorf("%v, want EPERM or EACCES", r.Err())
				}
				if after := looks(t, path); after != before {
					t.Errorf("it was %s, and is %s", before, after)
				}
				c.p.Must(lab.Call{Op: "close", FD: fd})
			})
		}
		closed := v.InSource(who)
		if err := errors.Join(os.Mkdir(closed, 0o700), os.Chown(closed, c.is, c.is)); err != nil {
			t.Fatal(err)
		}
		c.p.Must(lab.Call{Op: "close", FD: c.p.Open(a.Path(who), unix.O_RDONLY)})
		if err := os.Chown(closed, c.new, c.new); err != nil {
			t.Fatal(err)
		}
		c.p.Fails(lab.Call{Op: "open", Path: a.Path(who), Flags: unix.O_RDONLY}, unix.EACCES)
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
	for _, name := range []string{"user.x", lab.ACLAccess} {
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
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	root := lab.NewAgent(t)
	changes := map[string]lab.Call{
		"chmod":    {Op: "chmod", Mode: 0o4755},
		"chgrp":    {Op: "chown", Off: -1, N: 2000},
		"utimes":   {Op: "utimes", Off: 1000},
		"setxattr": {Op: "setxattr", Path2: "user.x", Data: "02"},
		"setfacl":  {Op: "setxattr", Path2: lab.ACLAccess, Data: lab.ACL(1000)},
	}
	each := longtest.For(t) / time.Duration(len(changes))
	for what, c := range changes {
		t.Run(what, func(t *testing.T) {
			v.Write(what, "the user's program")
			path := v.InSource(what)
			user := v.NewUser(1000, 2000)
			c.Path = a.Path(what)
			reset := func() {
				t.Helper()
				_ = unix.Removexattr(path, lab.ACLAccess)
				_ = unix.Removexattr(path, "user.x")
				err := errors.Join(unix.Chmod(path, 0o644), unix.Utimes(path, make([]unix.Timeval, 2)), os.Chown(path, 1000, 1000))
				if err != nil {
					t.Fatal(err)
				}
			}
			reset()
			user.Must(c)
			user.Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{{Op: "ask", Path: c.Path}, c}})
			for round, end := 0, time.Now().Add(each); round < 200 || time.Now().Before(end); round++ {
				reset()
				root.Must(lab.Call{Op: "chown", Path: b.Path(what)})
				before := looks(t, path)
				root.Must(lab.Call{Op: "ask", Path: b.Path(what)}) // some time
				var st unix.Stat_t
				if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_ISUID != 0 {
					t.Fatalf("%v: it is root's, and has mode %o", err, st.Mode)
				}
				if after := looks(t, path); after != before {
					t.Fatalf("it is root's, was %s, and is %s", before, after)
				}
			}
			user.Kill()
		})
	}
}

// What a program may be is more than what may be read, and less than what root may.
func TestRunWithoutReading(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	program, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	v.Write("id", string(program))
	user := v.NewUser(1000, 0)
	for mode, want := range map[uint32]bool{0o711: true, 0o710: false, 0o744: false} {
		if err := unix.Chmod(v.InSource("id"), mode); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "the mode counts", func() bool { // within the second that attributes are believed
			cmd := exec.Command(a.Path("id"), "-u")
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
			out, err := cmd.Output()
			return (err == nil) == want && (string(out) == "1000\n") == want
		})
		r := user.Do(lab.Call{Op: "open", Path: a.Path("id"), Flags: unix.O_RDONLY})
		if readable := mode&0o4 != 0; (r.Errno == 0) != readable {
			t.Errorf("mode %o: open to read: %v", mode, r.Err())
		}
	}
	// The kernel opens a file for the flags of one that may be written only.
	v.Write("f", "")
	if err := errors.Join(os.Chown(v.InSource("f"), 1000, 1000), unix.Chmod(v.InSource("f"), 0o200)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{v.Source, a.Dir} {
		user.Must(lab.Call{Op: "getflags", FD: user.Open(filepath.Join(dir, "f"), unix.O_WRONLY)})
	}
}
