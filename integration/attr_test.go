package integration

import (
	"os"
	"strings"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// Rule 17: what a file is called, whose it is and who may open it are not its
// bytes. Nobody waits to change them, and no writer is disturbed.
func TestMetadataNeedsNoLock(t *testing.T) {
	v := newVolume(t, "--wait", "0")
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	holder, owner := newAgent(t), v.newUser(1000, 0)
	if err := os.Chown(v.inSource("f"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	fd := holder.open(a.path("f"), wronly)
	for _, m := range []*mount{a, b} {
		for _, c := range []call{
			{Op: "chmod", Path: m.path("f"), Mode: 0o600},
			{Op: "chown", Path: m.path("f"), Off: 1000, N: 1000},
			{Op: "utimes", Path: m.path("f"), Off: 1000},
			{Op: "setxattr", Path: m.path("f"), Path2: "user.x", Data: "01"},
			{Op: "removexattr", Path: m.path("f"), Path2: "user.x"},
		} {
			owner.must(c)
			holder.must(call{Op: "write", FD: fd, Data: "x"})
		}
	}
	// The other mount's kernel enforces it within the second that it believes attributes.
	other := v.newUser(1001, 0)
	for mode, want := range map[int]error{0o600: unix.EACCES, 0o644: nil} {
		owner.must(call{Op: "chmod", Path: b.path("f"), Mode: mode})
		eventually(t, "the mode counts on the other mount", func() bool {
			r := other.do(call{Op: "open", Path: a.path("f"), Flags: rdonly})
			return r.Err() == want
		})
	}
	holder.must(call{Op: "close", FD: fd})
	if got := v.read("f"); got != strings.Repeat("x", 10) {
		t.Errorf("the file holds %q", got)
	}
}

// While the session is suspended writes wait, and metadata is changed; also of
// a file of which a mapping is dirty, though its pages cannot be written back.
func TestMetadataNeedsNoLease(t *testing.T) {
	v := newVolume(t, "--suspend-wait", "1h", "--ttl", shortTTL.String())
	a := v.mount("a")
	v.write("f", strings.Repeat("-", 4096))
	holder, p := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), rdwr)
	holder.must(call{Op: "mmap", FD: fd, N: 4096})
	etcd := v.etcdPID()
	freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	eventually(t, "the session is suspended", func() bool { return strings.Contains(a.log.String(), "suspended") })
	holder.must(call{Op: "store", FD: fd, Data: "x"})
	p.must(call{Op: "chmod", Path: a.path("f"), Mode: 0o600})
	p.must(call{Op: "utimes", Path: a.path("f"), Off: 1000})
	if got := p.must(call{Op: "mtime", Path: v.inSource("f")}); got != 1000 {
		t.Errorf("the time is %d, want 1000", got)
	}
}

// A time is set after what mappings have dirtied is written back, and whoever
// sets it can be killed meanwhile.
func TestTimeWaitsForMappings(t *testing.T) {
	v := newVolume(t, "--embedded")
	v.inMemory()
	writes := newTurnstile(t)
	v.under(func(b below) gofs.InodeEmbedder { return &heldWrites{b, writes} })
	a := v.mount("a")
	v.write("f", strings.Repeat("-", 4096))
	holder, p, victim := newAgent(t), newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), rdwr)
	holder.must(call{Op: "mmap", FD: fd, N: 4096})
	holder.must(call{Op: "store", FD: fd, Data: "x"})
	writes.shut.Store(true)
	defer writes.end()
	pending := victim.start(call{Op: "utimes", Path: a.path("f"), Off: 1000})
	let := writes.next()
	select {
	case r := <-pending:
		t.Fatalf("the time is set before the mapping is written: %v", r.Err())
	default:
	}
	dead := make(chan struct{})
	go func() { victim.kill(); close(dead) }()
	select {
	case <-dead:
	case <-time.After(callTimeout):
		t.Fatal("a program that sets a time cannot be killed")
	}
	writes.shut.Store(false)
	let()
	p.must(call{Op: "utimes", Path: a.path("f"), Off: 2000})
	holder.must(call{Op: "msync", FD: fd})
	if got := p.must(call{Op: "mtime", Path: v.inSource("f")}); got != 2000 {
		t.Errorf("the time is %d, want 2000", got)
	}
	if got := v.read("f"); got[0] != 'x' {
		t.Errorf("the file begins with %q", got[0])
	}
}

// listxattr shows the names that getxattr shows, and their size.
func TestListXAttr(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	v.write("f", "")
	root, user := newAgent(t), v.newUser(1000, 0)
	for _, attr := range []string{"trusted.t", "user.u", "trusted.v"} {
		root.must(call{Op: "setxattr", Path: a.path("f"), Path2: attr, Data: "01"})
	}
	for _, c := range []struct {
		p    *agent
		want string
	}{{root, "trusted.t trusted.v user.u"}, {user, "user.u"}} {
		size := len(c.want) + 1
		if got := c.p.must(call{Op: "listxattr", Path: a.path("f")}); got != size {
			t.Errorf("the size of %q is told as %d", c.want, got)
		}
		if r := c.p.do(call{Op: "listxattr", Path: a.path("f"), N: size}); r.Data != c.want || r.N != size {
			t.Errorf("listed: %q (%d, %v), want %q", r.Data, r.N, r.Err(), c.want)
		}
		c.p.fails(call{Op: "listxattr", Path: a.path("f"), N: size - 1}, unix.ERANGE)
	}
}

// A file was born when the file below was.
func TestBirthTime(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	v.write("f", "")
	p := newAgent(t)
	want := p.do(call{Op: "birth", Path: v.inSource("f")})
	if got := p.do(call{Op: "birth", Path: a.path("f")}); got.Data != want.Data || got.Err() != nil {
		t.Errorf("born %s (%v), want %s", got.Data, got.Err(), want.Data)
	}
}

const ( // of linux/fs.h
	flagImmutable = 0x10
	flagAppend    = 0x20
	flagNoDump    = 0x40
	flagNoAtime   = 0x80
	flagData      = 0x4000
)

// The flags of lsattr and chattr are changed by those who may do so on a local
// disk. As for all metadata no lock is asked for; an immutable file is so for
// its writer too.
func TestFlags(t *testing.T) {
	v := newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	v.write("f", strings.Repeat("-", 4096))
	root, owner, other := newAgent(t), v.newUser(1000, 0), v.newUser(1001, 0)
	root.must(call{Op: "chown", Path: a.path("f"), Off: 1000, N: 1000})
	below := root.open(v.inSource("f"), rdonly)
	usual := root.must(call{Op: "getflags", FD: below})
	t.Cleanup(func() { root.do(call{Op: "setflags", FD: below, Flags: usual}) })

	set := func(p *agent, flags int) call {
		return call{Op: "setflags", FD: p.open(b.path("f"), rdonly), Flags: usual | flags}
	}
	changed := func() (st unix.Statx_t) {
		if err := unix.Statx(unix.AT_FDCWD, b.path("f"), 0, unix.STATX_CTIME, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	before := changed()
	owner.must(set(owner, flagNoDump|flagNoAtime))
	if changed().Ctime == before.Ctime {
		t.Error("the time of change does not show that flags were set")
	}
	for _, fd := range []int{below, root.open(a.path("f"), rdonly)} {
		if got := root.must(call{Op: "getflags", FD: fd}); got != usual|flagNoDump|flagNoAtime {
			t.Errorf("flags %x, want %x", got, usual|flagNoDump|flagNoAtime)
		}
	}
	other.fails(set(other, 0), unix.EPERM)
	owner.fails(set(owner, flagImmutable), unix.EPERM)
	owner.fails(set(owner, flagAppend), unix.EPERM)
	for _, p := range []*agent{owner, root} { // how bytes are stored is nobody's to say
		p.fails(set(p, flagData), unix.EOPNOTSUPP)
	}

	holder := newAgent(t)
	fd := holder.open(b.path("f"), rdwr)
	holder.must(call{Op: "mmap", FD: fd, N: 4096})
	freeze := set(root, flagImmutable) // an open writes back what others have dirtied
	holder.must(call{Op: "store", FD: fd, Data: "x"})
	root.must(freeze)
	if got := v.read("f"); got[0] != 'x' {
		t.Error("what a mapping had is lost")
	}
	holder.fails(call{Op: "pwrite", FD: fd, Data: "y"}, unix.EPERM)
	holder.must(call{Op: "munmap", FD: fd})
	holder.must(call{Op: "close", FD: fd})
	root.fails(call{Op: "open", Path: a.path("f"), Flags: wronly}, unix.EPERM)
	root.fails(call{Op: "unlink", Path: a.path("f")}, unix.EPERM)
	owner.fails(set(owner, 0), unix.EPERM)
	root.must(set(root, 0))
	root.must(call{Op: "unlink", Path: a.path("f")})
}

// Ioctls that are not known to be harmless do not reach the volume, where root
// would make them.
func TestIoctls(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	v.write("f", "12345678")
	p := newAgent(t)
	const (
		getVersion  = 0x80087601 // FS_IOC_GETVERSION
		setVersion  = 0x40087602
		setXFlags   = 0x401c5820 // FS_IOC_FSSETXATTR
		moveExtents = 0xc028660f // EXT4_IOC_MOVE_EXT
		shutdown    = 0x8004587d // EXT4_IOC_SHUTDOWN
		getXFlags   = 0x801c581f // FS_IOC_FSGETXATTR
	)
	view, below := p.open(a.path("f"), rdwr), p.open(v.inSource("f"), rdonly)
	for _, cmd := range []int{getVersion, setVersion, moveExtents, shutdown} {
		p.fails(call{Op: "ioctl", FD: view, N: cmd}, unix.ENOTTY)
	}
	if r := p.do(call{Op: "ioctl", FD: view, N: setXFlags}); r.Errno == 0 {
		t.Error("FS_IOC_FSSETXATTR reaches the volume")
	}
	got, want := p.do(call{Op: "ioctl", FD: view, N: getXFlags}), p.do(call{Op: "ioctl", FD: below, N: getXFlags})
	if got.Data != want.Data || got.Err() != nil {
		t.Errorf("FS_IOC_FSGETXATTR: %s (%v), want %s", got.Data, got.Err(), want.Data)
	}
	// A directory's are a directory's.
	p.must(call{Op: "mkdir", Path: a.path("d")})
	run(t, "chattr", "+d", a.path("d"))
	run(t, "lsattr", "-d", a.path("d"))
}
