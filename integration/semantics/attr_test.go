package semantics

import (
	"os"
	"strings"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Rule 17: what a file is called, whose it is and who may open it are not its
// bytes. Nobody waits to change them, and no writer is disturbed.
func TestMetadataNeedsNoLock(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "0")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder, owner := lab.NewAgent(t), v.NewUser(1000, 0)
	if err := os.Chown(v.InSource("f"), 1000, 1000); err != nil {
		t.Fatal(err)
	}
	fd := holder.Open(a.Path("f"), unix.O_WRONLY)
	for _, m := range []*lab.Mount{a, b} {
		for _, c := range []lab.Call{
			{Op: "chmod", Path: m.Path("f"), Mode: 0o600},
			{Op: "chown", Path: m.Path("f"), Off: 1000, N: 1000},
			{Op: "utimes", Path: m.Path("f"), Off: 1000},
			{Op: "setxattr", Path: m.Path("f"), Path2: "user.x", Data: "01"},
			{Op: "removexattr", Path: m.Path("f"), Path2: "user.x"},
		} {
			owner.Must(c)
			holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		}
	}
	// The other mount's kernel enforces it within the second that it believes attributes.
	other := v.NewUser(1001, 0)
	for mode, want := range map[int]error{0o600: unix.EACCES, 0o644: nil} {
		owner.Must(lab.Call{Op: "chmod", Path: b.Path("f"), Mode: mode})
		lab.Eventually(t, "the mode counts on the other mount", func() bool {
			r := other.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY})
			return r.Err() == want
		})
	}
	holder.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != strings.Repeat("x", 10) {
		t.Errorf("the file holds %q", got)
	}
}

// While the session is suspended writes wait, and metadata is changed; also of
// a file of which a mapping is dirty, though its pages cannot be written back.
func TestMetadataNeedsNoLease(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--suspend-wait", "1h", "--ttl", mortalTTL)
	a := v.Mount("a")
	v.Write("f", strings.Repeat("-", 4096))
	holder, p := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "mmap", FD: fd, N: 4096})
	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	lab.Eventually(t, "the session is suspended", a.IsSuspended)
	holder.Must(lab.Call{Op: "store", FD: fd, Data: "x"})
	p.Must(lab.Call{Op: "chmod", Path: a.Path("f"), Mode: 0o600})
	p.Must(lab.Call{Op: "utimes", Path: a.Path("f"), Off: 1000})
	if got := p.Must(lab.Call{Op: "mtime", Path: v.InSource("f")}); got != 1000 {
		t.Errorf("the time is %d, want 1000", got)
	}
}

// A time is set after what mappings have dirtied is written back, and whoever
// sets it can be killed meanwhile.
func TestTimeWaitsForMappings(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	writes := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &heldWrites{b, writes} })
	a := v.Mount("a")
	v.Write("f", strings.Repeat("-", 4096))
	holder, p, victim := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "mmap", FD: fd, N: 4096})
	holder.Must(lab.Call{Op: "store", FD: fd, Data: "x"})
	writes.Shut.Store(true)
	defer writes.End()
	pending := victim.Start(lab.Call{Op: "utimes", Path: a.Path("f"), Off: 1000})
	let := writes.Next()
	select {
	case r := <-pending:
		t.Fatalf("the time is set before the mapping is written: %v", r.Err())
	default:
	}
	dead := make(chan struct{})
	go func() { victim.Kill(); close(dead) }()
	select {
	case <-dead:
	case <-time.After(lab.CallTimeout):
		t.Fatal("a program that sets a time cannot be killed")
	}
	writes.Shut.Store(false)
	let()
	p.Must(lab.Call{Op: "utimes", Path: a.Path("f"), Off: 2000})
	holder.Must(lab.Call{Op: "msync", FD: fd})
	if got := p.Must(lab.Call{Op: "mtime", Path: v.InSource("f")}); got != 2000 {
		t.Errorf("the time is %d, want 2000", got)
	}
	if got := v.Read("f"); got[0] != 'x' {
		t.Errorf("the file begins with %q", got[0])
	}
}

// listxattr shows the names that getxattr shows, and their size.
func TestListXAttr(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", "")
	root, user := lab.NewAgent(t), v.NewUser(1000, 0)
	for _, attr := range []string{"trusted.t", "user.u", "trusted.v"} {
		root.Must(lab.Call{Op: "setxattr", Path: a.Path("f"), Path2: attr, Data: "01"})
	}
	for _, c := range []struct {
		p    *lab.Agent
		want string
	}{{root, "trusted.t trusted.v user.u"}, {user, "user.u"}} {
		size := len(c.want) + 1
		if got := c.p.Must(lab.Call{Op: "listxattr", Path: a.Path("f")}); got != size {
			t.Errorf("the size of %q is told as %d", c.want, got)
		}
		if r := c.p.Do(lab.Call{Op: "listxattr", Path: a.Path("f"), N: size}); r.Data != c.want || r.N != size {
			t.Errorf("listed: %q (%d, %v), want %q", r.Data, r.N, r.Err(), c.want)
		}
		c.p.Fails(lab.Call{Op: "listxattr", Path: a.Path("f"), N: size - 1}, unix.ERANGE)
	}
}

// A file was born when the file below was.
func TestBirthTime(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", "")
	p := lab.NewAgent(t)
	want := p.Do(lab.Call{Op: "birth", Path: v.InSource("f")})
	if got := p.Do(lab.Call{Op: "birth", Path: a.Path("f")}); got.Data != want.Data || got.Err() != nil {
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

// The flags of lsattr and chattr are changed by users that may do so on a local
// disk. As for all metadata no lock is asked for; an immutable file is so for
// its writer too.
func TestFlags(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", strings.Repeat("-", 4096))
	root, owner, other := lab.NewAgent(t), v.NewUser(1000, 0), v.NewUser(1001, 0)
	root.Must(lab.Call{Op: "chown", Path: a.Path("f"), Off: 1000, N: 1000})
	below := root.Open(v.InSource("f"), unix.O_RDONLY)
	usual := root.Must(lab.Call{Op: "getflags", FD: below})
	t.Cleanup(func() { root.Do(lab.Call{Op: "setflags", FD: below, Flags: usual}) })

	set := func(p *lab.Agent, flags int) lab.Call {
		return lab.Call{Op: "setflags", FD: p.Open(b.Path("f"), unix.O_RDONLY), Flags: usual | flags}
	}
	changed := func() (st unix.Statx_t) {
		if err := unix.Statx(unix.AT_FDCWD, b.Path("f"), 0, unix.STATX_CTIME, &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	before := changed()
	owner.Must(set(owner, flagNoDump|flagNoAtime))
	if changed().Ctime == before.Ctime {
		t.Error("the time of change does not show that flags were set")
	}
	for _, fd := range []int{below, root.Open(a.Path("f"), unix.O_RDONLY)} {
		if got := root.Must(lab.Call{Op: "getflags", FD: fd}); got != usual|flagNoDump|flagNoAtime {
			t.Errorf("flags %x, want %x", got, usual|flagNoDump|flagNoAtime)
		}
	}
	other.Fails(set(other, 0), unix.EPERM)
	owner.Fails(set(owner, flagImmutable), unix.EPERM)
	owner.Fails(set(owner, flagAppend), unix.EPERM)
	for _, p := range []*lab.Agent{owner, root} { // how bytes are stored is nobody's to say
		p.Fails(set(p, flagData), unix.EOPNOTSUPP)
	}

	holder := lab.NewAgent(t)
	fd := holder.Open(b.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "mmap", FD: fd, N: 4096})
	freeze := set(root, flagImmutable) // an open writes back what others have dirtied
	holder.Must(lab.Call{Op: "store", FD: fd, Data: "x"})
	root.Must(freeze)
	if got := v.Read("f"); got[0] != 'x' {
		t.Error("what a mapping had is lost")
	}
	holder.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "y"}, unix.EPERM)
	holder.Must(lab.Call{Op: "munmap", FD: fd})
	holder.Must(lab.Call{Op: "close", FD: fd})
	root.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY}, unix.EPERM)
	root.Fails(lab.Call{Op: "unlink", Path: a.Path("f")}, unix.EPERM)
	owner.Fails(set(owner, 0), unix.EPERM)
	root.Must(set(root, 0))
	root.Must(lab.Call{Op: "unlink", Path: a.Path("f")})
}

// Ioctls that are not known to be harmless do not reach the volume, where root
// would make them.
func TestIoctls(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	v.Write("f", "12345678")
	p := lab.NewAgent(t)
	const (
		getVersion  = 0x80087601 // FS_IOC_GETVERSION
		setVersion  = 0x40087602
		setXFlags   = 0x401c5820 // FS_IOC_FSSETXATTR
		moveExtents = 0xc028660f // EXT4_IOC_MOVE_EXT
		shutdown    = 0x8004587d // EXT4_IOC_SHUTDOWN
		getXFlags   = 0x801c581f // FS_IOC_FSGETXATTR
	)
	view, below := p.Open(a.Path("f"), unix.O_RDWR), p.Open(v.InSource("f"), unix.O_RDONLY)
	for _, cmd := range []int{getVersion, setVersion, moveExtents, shutdown} {
		p.Fails(lab.Call{Op: "ioctl", FD: view, N: cmd}, unix.ENOTTY)
	}
	if r := p.Do(lab.Call{Op: "ioctl", FD: view, N: setXFlags}); r.Errno == 0 {
		t.Error("FS_IOC_FSSETXATTR reaches the volume")
	}
	got, want := p.Do(lab.Call{Op: "ioctl", FD: view, N: getXFlags}), p.Do(lab.Call{Op: "ioctl", FD: below, N: getXFlags})
	if got.Data != want.Data || got.Err() != nil {
		t.Errorf("FS_IOC_FSGETXATTR: %s (%v), want %s", got.Data, got.Err(), want.Data)
	}
	// A directory's are a directory's.
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	lab.Run(t, "chattr", "+d", a.Path("d"))
	lab.Run(t, "lsattr", "-d", a.Path("d"))
}
