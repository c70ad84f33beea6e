package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A network volume's client keeps what was written, and delivers it when it
// likes. By --sync it is on the volume at once; or when the file is closed, and
// as soon as the lock service does not answer: before anybody else can have the
// lock. (docs/SEMANTICS.md, rule 19.)
func TestSync(t *testing.T) {
	for _, c := range []struct {
		sync                      string
		atOnce, inTrouble, closed bool
	}{
		{"always", true, true, true},
		{"auto", false, true, true}, // the backing is a network file system
		{"never", false, false, true},
	} {
		t.Run(c.sync, func(t *testing.T) {
			v := newVolumeOverClients(t, clientConfig{WriteBack: true}, "--ttl", "9s", "--sync", c.sync)
			a := v.mount("a")
			p := newAgent(t)
			before, after := p.open(a.path("before"), wronly|create), p.open(a.path("after"), wronly|create)
			has := func(name, want string) bool {
				b, err := os.ReadFile(v.inSource(name))
				if err != nil {
					t.Fatal(err)
				}
				return string(b) == want
			}
			p.must(call{Op: "write", FD: before, Data: "one"})
			if got := has("before", "one"); got != c.atOnce {
				t.Errorf("on the volume at once: %v", got)
			}

			etcd := v.etcdPID()
			t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
			freeze(t, etcd)
			eventually(t, "the renewal fails", func() bool { return strings.Contains(a.log.String(), "lock session not renewed") })
			p.must(call{Op: "write", FD: after, Data: "two"}) // the lease is still ours
			if got := has("after", "two"); got != c.inTrouble {
				t.Errorf("written in time of trouble, and on the volume at once: %v", got)
			}
			if c.inTrouble {
				eventually(t, "what was written before is on the volume", func() bool { return has("before", "one") })
			}
			if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			p.must(call{Op: "close", FD: before})
			p.must(call{Op: "close", FD: after})
			if got := has("before", "one") && has("after", "two"); got != c.closed {
				t.Errorf("on the volume after close: %v", got)
			}
		})
	}
}

// What a program asks to be on the volume when write returns is there, by whatever
// it asks: of a handle that goes past the kernel's cache there is no request but the
// WRITE. (docs/SEMANTICS.md, rule 19.)
func TestWriteThrough(t *testing.T) {
	v := newVolumeOverClients(t, clientConfig{WriteBack: true}, "--sync", "never")
	a := v.mount("a")
	p := newAgent(t)
	for _, c := range []struct {
		name, op string
		flags    int
		through  bool
	}{
		{"neither", "write", wronly, false},
		{"RWF_DSYNC of O_WRONLY", "write through", wronly, true},
		{"RWF_DSYNC of O_APPEND", "write through", wronly | appends, true},
		{"RWF_DSYNC of O_RDWR and O_APPEND", "write through", rdwr | appends, true},
		{"RWF_DSYNC of O_RDWR", "write through", rdwr, true},
		{"O_DSYNC", "write", wronly | unix.O_DSYNC, true},
		{"O_SYNC", "write", wronly | unix.O_SYNC, true},
	} {
		fd := p.open(a.path(c.name), c.flags|create)
		p.must(call{Op: c.op, FD: fd, Data: "one"})
		b, err := os.ReadFile(v.inSource(c.name))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b) == "one"; got != c.through {
			t.Errorf("%s: on the volume at once: %v", c.name, got)
		}
		p.must(call{Op: "close", FD: fd})
	}
}

// The same where the volume's client has files opened past its kernel's cache: there is
// no other request on the way to the volume that says it than an FSYNC. And where it has
// not: the client is asked once.
func TestWriteThroughPastTheCache(t *testing.T) {
	for name, config := range map[string]clientConfig{"past": {PastCache: true}, "through": {}} {
		t.Run(name, func(t *testing.T) { testClientIsAskedToSync(t, config) })
	}
}

func testClientIsAskedToSync(t *testing.T, config clientConfig) {
	logs := t.TempDir()
	config.Requests = logs
	v := newVolumeOverClients(t, config, "--sync", "never")
	a := v.mount("a")
	p := newAgent(t)
	asked := func() int { return requestsByName(t, filepath.Join(logs, "caching-a"))["FSYNC"] }
	for _, c := range []struct {
		name, op    string
		flags       int
		least, most int
	}{
		{"neither", "write", wronly, 0, 0},
		{"RWF_DSYNC", "write through", wronly, 1, 1},
		{"RWF_DSYNC of O_RDWR", "write through", rdwr, 1, 2}, // the view's kernel asks, too
		{"RWF_DSYNC of O_APPEND", "write through", rdwr | appends, 1, 1},
		{"O_DSYNC", "write", wronly | unix.O_DSYNC, 1, 1},
		{"O_SYNC", "write", wronly | unix.O_SYNC, 1, 1},
		{"a copy", "copy", rdwr, 0, 0},
		{"a copy with O_DSYNC", "copy", rdwr | unix.O_DSYNC, 1, 1},
		{"fallocate", "fallocate", wronly, 0, 0},
		{"fallocate with O_SYNC", "fallocate", wronly | unix.O_SYNC, 1, 1},
	} {
		if err := os.WriteFile(v.inSource(c.name), []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, made := range []bool{false, true} {
			name, flags := c.name, c.flags
			if made && c.op != "copy" {
				name, flags = name+" of a new file", flags|create
			}
			fd := p.open(a.path(name), flags)
			before := asked()
			p.must(call{Op: c.op, FD: fd, Data: "one", N: 3, Off: 10})
			if got := asked() - before; got < c.least || got > c.most {
				t.Errorf("%s: the volume's client is asked to sync %d times, want %d to %d", name, got, c.least, c.most)
			}
			p.must(call{Op: "close", FD: fd})
		}
	}
}
