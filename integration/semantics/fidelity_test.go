package semantics

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// An ACL counts on whichever side it was set, and shows on the other.
func TestACL(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	root := lab.NewAgent(t)
	user, other := v.NewUser(1000, 0), v.NewUser(1001, 0)
	for _, f := range []struct{ name, setOn string }{{"through-view", a.Path("through-view")}, {"behind-it", v.InSource("behind-it")}} {
		v.Write(f.name, "secret")
		root.Must(lab.Call{Op: "setxattr", Path: f.setOn, Path2: lab.ACLAccess, Data: lab.ACL(1000)})
		for _, dir := range []string{a.Dir, v.Source} {
			if r := root.Do(lab.Call{Op: "getxattr", Path: filepath.Join(dir, f.name), Path2: lab.ACLAccess}); r.Data != lab.ACL(1000) {
				t.Errorf("%s/%s has the ACL %s, %v", dir, f.name, r.Data, r.Err())
			}
		}
		lab.Eventually(t, "the ACL counts", func() bool { // within the second that attributes are believed
			r := user.Do(lab.Call{Op: "open", Path: a.Path(f.name), Flags: unix.O_RDONLY})
			if r.Errno == 0 {
				user.Must(lab.Call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
		user.Must(lab.Call{Op: "close", FD: user.Open(a.Path(f.name), unix.O_RDWR)})
		other.Fails(lab.Call{Op: "open", Path: a.Path(f.name), Flags: unix.O_RDONLY}, unix.EACCES)
	}
	user.Fails(lab.Call{Op: "setxattr", Path: a.Path("behind-it"), Path2: lab.ACLAccess, Data: lab.ACL(1001)}, unix.EPERM)
}

// The umask counts where there is no default ACL, and only there.
func TestUmask(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "umask", Mode: 0o027})
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("plain")})
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("acl")})
	p.Must(lab.Call{Op: "setxattr", Path: a.Path("acl"), Path2: lab.ACLDefault, Data: lab.ACL(1000)})
	for name, want := range map[string]int{"plain": 0o640, "acl": 0o660} {
		p.Must(lab.Call{Op: "close", FD: p.Must(lab.Call{Op: "open", Path: a.Path(name + "/f"), Flags: unix.O_WRONLY | unix.O_CREAT, Mode: 0o666})})
		if mode := p.Must(lab.Call{Op: "mode", Path: a.Path(name + "/f")}); mode != want {
			t.Errorf("a file in %s has mode %o, want %o", name, mode, want)
		}
	}
	if mode := p.Must(lab.Call{Op: "mode", Path: a.Path("plain")}); mode != 0o750 {
		t.Errorf("a directory has mode %o, want 750", mode)
	}
	if r := p.Do(lab.Call{Op: "getxattr", Path: a.Path("acl/f"), Path2: lab.ACLAccess}); r.Errno != 0 {
		t.Errorf("a file does not inherit the directory's ACL: %v", r.Errno)
	}
}

// Attributes that a network file system invents are nobody's to set through a
// daemon that is root.
func TestForeignAttributes(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", "")
	p := lab.NewAgent(t)
	for _, attr := range []string{"system.nfs4_acl", "ceph.quota"} {
		p.Fails(lab.Call{Op: "setxattr", Path: a.Path("f"), Path2: attr, Data: "00"}, unix.ENOTSUP)
	}
	p.Must(lab.Call{Op: "setxattr", Path: a.Path("f"), Path2: "user.x", Data: "00"})
}

// Whoever changes a file without CAP_FSETID takes its set-id bits away, by
// whichever call; the set-group-id bit of a file that its group cannot execute
// stays for members of the group.
func TestSetIDBits(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const group = 2000
	changes := map[string]func(p *lab.Agent, fd int){
		"write":     func(p *lab.Agent, fd int) { p.Must(lab.Call{Op: "write", FD: fd, Data: "x"}) },
		"ftruncate": func(p *lab.Agent, fd int) { p.Must(lab.Call{Op: "ftruncate", FD: fd, Off: 5}) },
		"fallocate": func(p *lab.Agent, fd int) { p.Must(lab.Call{Op: "fallocate", FD: fd, N: 100}) },
		"copy":      func(p *lab.Agent, fd int) { p.Must(lab.Call{Op: "copy", FD: fd, N: 4, Off: 4}) },
		"O_TRUNC": func(p *lab.Agent, fd int) {
			p.Must(lab.Call{Op: "close", FD: p.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_TRUNC)})
		},
	}
	root, member, stranger := lab.NewAgent(t), v.NewUser(1000, group), v.NewUser(1001, 0)
	for _, c := range []struct {
		who       string
		p         *lab.Agent
		mode, end int
	}{
		{"a stranger", stranger, 0o6777, 0o777},
		{"a stranger", stranger, 0o2766, 0o766},
		{"a member", member, 0o6777, 0o777},
		{"a member", member, 0o2766, 0o2766},
		{"root", root, 0o6777, 0o6777},
	} {
		for name, change := range changes {
			// The backing of these directories is the yardstick.
			for _, dir := range []string{v.Source, a.Dir} {
				v.Write("f", "12345678")
				path := filepath.Join(dir, "f")
				if err := os.Chown(v.InSource("f"), 0, group); err != nil {
					t.Fatal(err)
				}
				if err := unix.Chmod(v.InSource("f"), uint32(c.mode)); err != nil {
					t.Fatal(err)
				}
				fd := c.p.Open(path, unix.O_RDWR)
				change(c.p, fd)
				c.p.Must(lab.Call{Op: "close", FD: fd})
				if mode := c.p.Must(lab.Call{Op: "mode", Path: v.InSource("f")}); mode != c.end {
					t.Errorf("%s in %s by %s makes %o of mode %o, want %o", name, dir, c.who, mode, c.mode, c.end)
				}
				// Asked for the mode alone: not for what the kernel knows to have changed.
				var st unix.Statx_t
				if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MODE, &st); err != nil || int(st.Mode&0o7777) != c.end {
					t.Errorf("after %s in %s by %s the mode shows as %o, %v, want %o", name, dir, c.who, st.Mode, err, c.end)
				}
				if err := os.Remove(v.InSource("f")); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// What is made in a set-group-id directory has its group, and the set-group-id
// bit itself only from members of it: those that are by a supplementary group too.
func TestSetGroupIDDirectory(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const group = 2000
	for who, p := range map[string]*lab.Agent{"a member": v.NewUser(1000, group), "a stranger": v.NewUser(1001, 0), "root": lab.NewAgent(t)} {
		p.Must(lab.Call{Op: "umask"})
		for _, mode := range []int{0o2777, 0o2767} {
			var got [2]string
			for i, dir := range []string{v.Source, a.Dir} { // the backing is the yardstick
				d := filepath.Join(v.Source, "d")
				if err := errors.Join(os.Mkdir(d, 0o777), os.Chown(d, 0, group), unix.Chmod(d, 0o2777)); err != nil {
					t.Fatal(err)
				}
				d = filepath.Join(dir, "d")
				p.Must(lab.Call{Op: "close", FD: p.Must(lab.Call{Op: "open", Path: d + "/f", Flags: unix.O_WRONLY | unix.O_CREAT, Mode: mode})})
				p.Must(lab.Call{Op: "close", FD: p.Must(lab.Call{Op: "open", Path: d + "/g", Flags: unix.O_RDONLY | unix.O_CREAT, Mode: mode})})
				tmp := p.Must(lab.Call{Op: "open", Path: d, Flags: unix.O_WRONLY | unix.O_TMPFILE, Mode: mode})
				p.Must(lab.Call{Op: "name", FD: tmp, Path: d + "/t"})
				p.Must(lab.Call{Op: "close", FD: tmp})
				p.Must(lab.Call{Op: "mkdir", Path: d + "/d", Mode: mode})
				for _, name := range []string{"f", "g", "t", "d"} {
					var st unix.Stat_t
					if err := unix.Stat(filepath.Join(v.Source, "d", name), &st); err != nil {
						t.Fatal(err)
					}
					got[i] += fmt.Sprintf("%s %o %d:%d, ", name, st.Mode, st.Uid, st.Gid)
				}
				if err := os.RemoveAll(filepath.Join(v.Source, "d")); err != nil {
					t.Fatal(err)
				}
			}
			if got[1] != got[0] {
				t.Errorf("%s makes with mode %o:\n%s\nwant:\n%s", who, mode, got[1], got[0])
			}
		}
	}
}

// A volume's server may go by the supplementary groups of the user that makes a name.
func TestSupplementaryGroups(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &guardedDirs{b, "2000"} })
	a := v.Mount("a")
	if err := unix.Chmod(v.Source, 0o777); err != nil {
		t.Fatal(err)
	}
	member, stranger := v.NewUser(1000, 2000), v.NewUser(1001, 3000)
	member.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	stranger.Fails(lab.Call{Op: "mkdir", Path: a.Path("e")}, unix.EACCES)
}

// A path may be longer from the volume's root than any that the kernel takes.
func TestLongPath(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "chdir", Path: a.Dir})
	name := strings.Repeat("n", 250)
	for range 20 {
		p.Must(lab.Call{Op: "mkdir", Path: name})
		p.Must(lab.Call{Op: "chdir", Path: name})
	}
	fd := p.Open("f", unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "12345678"})
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "truncate", Path: "f", Off: 4})
	p.Must(lab.Call{Op: "rename", Path: "f", Path2: "g"})
	fd = p.Open("g", unix.O_WRONLY|unix.O_APPEND)
	if size := p.Must(lab.Call{Op: "size", FD: fd}); size != 4 {
		t.Errorf("truncate left %d bytes, want 4", size)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "unlink", Path: "g"})
}

// A program that catches signals sees EINTR of no call that only tries.
func TestSignalsDoNotFailTries(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder, p := lab.NewAgent(t), lab.NewAgent(t)
	holder.Open(a.Path("f"), unix.O_WRONLY)
	for _, c := range []lab.Call{
		{Op: "unlink", Path: b.Path("f")},
		{Op: "rename", Path: b.Path("f"), Path2: b.Path("g")},
		{Op: "truncate", Path: b.Path("f")},
	} {
		if r := p.Interrupt(p.Start(c)); r.Errno != unix.EBUSY {
			t.Errorf("%s under signals: %v, want EBUSY", c.Op, r.Err())
		}
	}
}

// What the files of a volume may do, the volume's mount says: run as their
// owner, be a device, be run at all.
func TestMountFlags(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	program, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	v.Write("id", string(program))
	if err := os.Chmod(v.InSource("id"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(v.InSource("zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Fatal(err)
	}
	user := v.NewUser(1000, 0)
	try := func(dir string) (says string) {
		cmd := exec.Command(filepath.Join(dir, "id"), "-u")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		out, err := cmd.Output()
		if err != nil {
			out = []byte("cannot be run")
		}
		r := user.Do(lab.Call{Op: "open", Path: filepath.Join(dir, "zero"), Flags: unix.O_RDONLY})
		if r.Errno == 0 {
			user.Must(lab.Call{Op: "close", FD: r.N})
		}
		return fmt.Sprintf("id: %s, zero: %v", strings.TrimSpace(string(out)), r.Err())
	}
	for _, flags := range []uintptr{0, unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC} {
		// The volume is mounted on itself, for the flags.
		for _, f := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | flags} {
			if err := unix.Mount(v.Source, v.Source, "", f, ""); err != nil {
				t.Fatal(err)
			}
		}
		m := v.Mount("a")
		got, want := try(m.Dir), try(v.Source)
		m.Stop()
		lab.Eventually(t, "the volume is unmounted", func() bool { return unix.Unmount(v.Source, 0) == nil })
		if got != want {
			t.Errorf("mounted with %#x: %s; through the view: %s", flags, want, got)
		}
	}
}
