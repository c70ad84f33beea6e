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
