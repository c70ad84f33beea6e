package integration

import (
	"encoding/binary"
	"encoding/hex"
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
)

const aclAccess, aclDefault = "system.posix_acl_access", "system.posix_acl_default"

// acl is the attribute, in hex, of an ACL that gives user all, and group and
// others nothing.
func acl(user uint32) string {
	b := binary.LittleEndian.AppendUint32(nil, 2) // version
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{0x01, 7, ^uint32(0)}, {0x02, 7, user}, {0x04, 0, ^uint32(0)}, {0x10, 7, ^uint32(0)}, {0x20, 0, ^uint32(0)}} {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return hex.EncodeToString(b)
}

// An ACL counts on whichever side it was set, and shows on the other.
func TestACL(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	root := newAgent(t)
	user, other := v.newUser(1000, 0), v.newUser(1001, 0)
	for _, f := range []struct{ name, setOn string }{{"through-view", a.path("through-view")}, {"behind-it", v.inSource("behind-it")}} {
		v.write(f.name, "secret")
		root.must(call{Op: "setxattr", Path: f.setOn, Path2: aclAccess, Data: acl(1000)})
		for _, dir := range []string{a.dir, v.source} {
			if r := root.do(call{Op: "getxattr", Path: filepath.Join(dir, f.name), Path2: aclAccess}); r.Data != acl(1000) {
				t.Errorf("%s/%s has the ACL %s, %v", dir, f.name, r.Data, r.Err())
			}
		}
		eventually(t, "the ACL counts", func() bool { // within the second that attributes are believed
			r := user.do(call{Op: "open", Path: a.path(f.name), Flags: rdonly})
			if r.Errno == 0 {
				user.must(call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
		user.must(call{Op: "close", FD: user.open(a.path(f.name), rdwr)})
		other.fails(call{Op: "open", Path: a.path(f.name), Flags: rdonly}, unix.EACCES)
	}
	user.fails(call{Op: "setxattr", Path: a.path("behind-it"), Path2: aclAccess, Data: acl(1001)}, unix.EPERM)
}

// The umask counts where there is no default ACL, and only there.
func TestUmask(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	p := newAgent(t)
	p.must(call{Op: "umask", Mode: 0o027})
	p.must(call{Op: "mkdir", Path: a.path("plain")})
	p.must(call{Op: "mkdir", Path: a.path("acl")})
	p.must(call{Op: "setxattr", Path: a.path("acl"), Path2: aclDefault, Data: acl(1000)})
	for name, want := range map[string]int{"plain": 0o640, "acl": 0o660} {
		p.must(call{Op: "close", FD: p.must(call{Op: "open", Path: a.path(name + "/f"), Flags: wronly | create, Mode: 0o666})})
		if mode := p.must(call{Op: "mode", Path: a.path(name + "/f")}); mode != want {
			t.Errorf("a file in %s has mode %o, want %o", name, mode, want)
		}
	}
	if mode := p.must(call{Op: "mode", Path: a.path("plain")}); mode != 0o750 {
		t.Errorf("a directory has mode %o, want 750", mode)
	}
	if r := p.do(call{Op: "getxattr", Path: a.path("acl/f"), Path2: aclAccess}); r.Errno != 0 {
		t.Errorf("a file does not inherit the directory's ACL: %v", r.Errno)
	}
}

// Attributes that a network file system invents are nobody's to set through a
// daemon that is root.
func TestForeignAttributes(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	v.write("f", "")
	p := newAgent(t)
	for _, attr := range []string{"system.nfs4_acl", "ceph.quota"} {
		p.fails(call{Op: "setxattr", Path: a.path("f"), Path2: attr, Data: "00"}, unix.ENOTSUP)
	}
	p.must(call{Op: "setxattr", Path: a.path("f"), Path2: "user.x", Data: "00"})
}

// Whoever changes a file without CAP_FSETID takes its set-id bits away, by
// whichever call; the set-group-id bit of a file that its group cannot execute
// stays for members of the group.
func TestSetIDBits(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	const group = 2000
	changes := map[string]func(p *agent, fd int){
		"write":     func(p *agent, fd int) { p.must(call{Op: "write", FD: fd, Data: "x"}) },
		"ftruncate": func(p *agent, fd int) { p.must(call{Op: "ftruncate", FD: fd, Off: 5}) },
		"fallocate": func(p *agent, fd int) { p.must(call{Op: "fallocate", FD: fd, N: 100}) },
		"copy":      func(p *agent, fd int) { p.must(call{Op: "copy", FD: fd, N: 4, Off: 4}) },
		"O_TRUNC": func(p *agent, fd int) {
			p.must(call{Op: "close", FD: p.open(fmt.Sprintf("/proc/self/fd/%d", fd), wronly|trunc)})
		},
	}
	root, member, stranger := newAgent(t), v.newUser(1000, group), v.newUser(1001, 0)
	for _, c := range []struct {
		who       string
		p         *agent
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
			for _, dir := range []string{v.source, a.dir} {
				v.write("f", "12345678")
				path := filepath.Join(dir, "f")
				if err := os.Chown(v.inSource("f"), 0, group); err != nil {
					t.Fatal(err)
				}
				if err := unix.Chmod(v.inSource("f"), uint32(c.mode)); err != nil {
					t.Fatal(err)
				}
				fd := c.p.open(path, rdwr)
				change(c.p, fd)
				c.p.must(call{Op: "close", FD: fd})
				if mode := c.p.must(call{Op: "mode", Path: v.inSource("f")}); mode != c.end {
					t.Errorf("%s in %s by %s makes %o of mode %o, want %o", name, dir, c.who, mode, c.mode, c.end)
				}
				// Asked for the mode alone: not for what the kernel knows to have changed.
				var st unix.Statx_t
				if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MODE, &st); err != nil || int(st.Mode&0o7777) != c.end {
					t.Errorf("after %s in %s by %s the mode shows as %o, %v, want %o", name, dir, c.who, st.Mode, err, c.end)
				}
				if err := os.Remove(v.inSource("f")); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// What is made in a set-group-id directory has its group, and the set-group-id
// bit itself only from members of it: those that are by a supplementary group too.
func TestSetGroupIDDirectory(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	const group = 2000
	for who, p := range map[string]*agent{"a member": v.newUser(1000, group), "a stranger": v.newUser(1001, 0), "root": newAgent(t)} {
		p.must(call{Op: "umask"})
		for _, mode := range []int{0o2777, 0o2767} {
			var got [2]string
			for i, dir := range []string{v.source, a.dir} { // the backing is the yardstick
				d := filepath.Join(v.source, "d")
				if err := errors.Join(os.Mkdir(d, 0o777), os.Chown(d, 0, group), unix.Chmod(d, 0o2777)); err != nil {
					t.Fatal(err)
				}
				d = filepath.Join(dir, "d")
				p.must(call{Op: "close", FD: p.must(call{Op: "open", Path: d + "/f", Flags: wronly | create, Mode: mode})})
				p.must(call{Op: "close", FD: p.must(call{Op: "open", Path: d + "/g", Flags: rdonly | create, Mode: mode})})
				tmp := p.must(call{Op: "open", Path: d, Flags: wronly | unix.O_TMPFILE, Mode: mode})
				p.must(call{Op: "name", FD: tmp, Path: d + "/t"})
				p.must(call{Op: "close", FD: tmp})
				p.must(call{Op: "mkdir", Path: d + "/d", Mode: mode})
				for _, name := range []string{"f", "g", "t", "d"} {
					var st unix.Stat_t
					if err := unix.Stat(filepath.Join(v.source, "d", name), &st); err != nil {
						t.Fatal(err)
					}
					got[i] += fmt.Sprintf("%s %o %d:%d, ", name, st.Mode, st.Uid, st.Gid)
				}
				if err := os.RemoveAll(filepath.Join(v.source, "d")); err != nil {
					t.Fatal(err)
				}
			}
			if got[1] != got[0] {
				t.Errorf("%s makes with mode %o:\n%s\nwant:\n%s", who, mode, got[1], got[0])
			}
		}
	}
}

// A volume's server may go by the supplementary groups of who makes a name.
func TestSupplementaryGroups(t *testing.T) {
	v := newVolume(t, "--embedded")
	v.under(func(b below) gofs.InodeEmbedder { return &guardedDirs{b, "2000"} })
	a := v.mount("a")
	if err := unix.Chmod(v.source, 0o777); err != nil {
		t.Fatal(err)
	}
	member, stranger := v.newUser(1000, 2000), v.newUser(1001, 3000)
	member.must(call{Op: "mkdir", Path: a.path("d")})
	stranger.fails(call{Op: "mkdir", Path: a.path("e")}, unix.EACCES)
}

// A path may be longer from the volume's root than any that the kernel takes.
func TestLongPath(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	p := newAgent(t)
	p.must(call{Op: "chdir", Path: a.dir})
	name := strings.Repeat("n", 250)
	for range 20 {
		p.must(call{Op: "mkdir", Path: name})
		p.must(call{Op: "chdir", Path: name})
	}
	fd := p.open("f", wronly|create)
	p.must(call{Op: "write", FD: fd, Data: "12345678"})
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "truncate", Path: "f", Off: 4})
	p.must(call{Op: "rename", Path: "f", Path2: "g"})
	fd = p.open("g", wronly|appends)
	if size := p.must(call{Op: "size", FD: fd}); size != 4 {
		t.Errorf("truncate left %d bytes, want 4", size)
	}
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "unlink", Path: "g"})
}

// A program that catches signals sees EINTR of no call that only tries.
func TestSignalsDoNotFailTries(t *testing.T) {
	v := newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	holder, p := newAgent(t), newAgent(t)
	holder.open(a.path("f"), wronly)
	for _, c := range []call{
		{Op: "unlink", Path: b.path("f")},
		{Op: "rename", Path: b.path("f"), Path2: b.path("g")},
		{Op: "truncate", Path: b.path("f")},
	} {
		if r := p.interrupt(p.start(c)); r.Errno != unix.EBUSY {
			t.Errorf("%s under signals: %v, want EBUSY", c.Op, r.Err())
		}
	}
}

// What the files of a volume may do, the volume's mount says: run as their
// owner, be a device, be run at all.
func TestMountFlags(t *testing.T) {
	v := newVolume(t)
	program, err := os.ReadFile("/usr/bin/id")
	if err != nil {
		t.Fatal(err)
	}
	v.write("id", string(program))
	if err := os.Chmod(v.inSource("id"), 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(v.inSource("zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
		t.Fatal(err)
	}
	user := v.newUser(1000, 0)
	try := func(dir string) (says string) {
		cmd := exec.Command(filepath.Join(dir, "id"), "-u")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		out, err := cmd.Output()
		if err != nil {
			out = []byte("cannot be run")
		}
		r := user.do(call{Op: "open", Path: filepath.Join(dir, "zero"), Flags: rdonly})
		if r.Errno == 0 {
			user.must(call{Op: "close", FD: r.N})
		}
		return fmt.Sprintf("id: %s, zero: %v", strings.TrimSpace(string(out)), r.Err())
	}
	for _, flags := range []uintptr{0, unix.MS_NOSUID, unix.MS_NODEV, unix.MS_NOEXEC} {
		// The volume is mounted on itself, for the flags.
		for _, f := range []uintptr{unix.MS_BIND, unix.MS_BIND | unix.MS_REMOUNT | flags} {
			if err := unix.Mount(v.source, v.source, "", f, ""); err != nil {
				t.Fatal(err)
			}
		}
		m := v.mount("a")
		got, want := try(m.dir), try(v.source)
		m.stop()
		if err := unix.Unmount(v.source, 0); err != nil {
			t.Error(err)
		}
		if got != want {
			t.Errorf("mounted with %#x: %s; through the view: %s", flags, want, got)
		}
	}
}
