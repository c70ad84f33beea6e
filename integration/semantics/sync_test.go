package semantics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A network volume's client keeps what was written, and delivers it when it
// likes. By --sync it is on the volume at once; or when the file is closed, and
// as soon as the lock service does not answer: before anybody else can have the
// lock. (docs/SEMANTICS.md, rule 19.)
func TestSync(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		sync                      string
		atOnce, inTrouble, closed bool
	}{
		{"always", true, true, true},
		{"auto", false, true, true}, // the backing is a network file system
		{"never", false, false, true},
	} {
		t.Run(c.sync, func(t *testing.T) {
			t.Parallel()
			v := lab.NewVolumeOverClients(t, lab.ClientConfig{WriteBack: true}, "--ttl", "60s", "--sync", c.sync)
			a := v.Mount("a")
			p := lab.NewAgent(t)
			before, after := p.Open(a.Path("before"), unix.O_WRONLY|unix.O_CREAT), p.Open(a.Path("after"), unix.O_WRONLY|unix.O_CREAT)
			has := func(name, want string) bool {
				b, err := os.ReadFile(v.InSource(name))
				if err != nil {
					t.Fatal(err)
				}
				return string(b) == want
			}
			p.Must(lab.Call{Op: "write", FD: before, Data: "one"})
			const trouble = "lock session not renewed"
			if got := has("before", "one"); got != c.atOnce && !strings.Contains(a.Log.String(), trouble) {
				t.Errorf("on the volume at once: %v", got)
			}

			etcd := v.EtcdPID()
			t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
			lab.Freeze(t, etcd)
			troubles := strings.Count(a.Log.String(), trouble)
			lab.Eventually(t, "the renewal fails", func() bool { return strings.Count(a.Log.String(), trouble) > troubles })
			p.Must(lab.Call{Op: "write", FD: after, Data: "two"}) // the lease is still ours
			if got := has("after", "two"); got != c.inTrouble {
				t.Errorf("written in time of trouble, and on the volume at once: %v", got)
			}
			if c.inTrouble {
				lab.Eventually(t, "what was written before is on the volume", func() bool { return has("before", "one") })
			}
			if err := unix.Kill(etcd, unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			p.Must(lab.Call{Op: "close", FD: before})
			p.Must(lab.Call{Op: "close", FD: after})
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
	t.Parallel()
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{WriteBack: true}, "--sync", "never")
	a := v.Mount("a")
	p := lab.NewAgent(t)
	for _, c := range []struct {
		name, op string
		flags    int
		through  bool
	}{
		{"neither", "write", unix.O_WRONLY, false},
		{"RWF_DSYNC of O_WRONLY", "write through", unix.O_WRONLY, true},
		{"RWF_DSYNC of O_APPEND", "write through", unix.O_WRONLY | unix.O_APPEND, true},
		{"RWF_DSYNC of O_RDWR and O_APPEND", "write through", unix.O_RDWR | unix.O_APPEND, true},
		{"RWF_DSYNC of O_RDWR", "write through", unix.O_RDWR, true},
		{"O_DSYNC", "write", unix.O_WRONLY | unix.O_DSYNC, true},
		{"O_SYNC", "write", unix.O_WRONLY | unix.O_SYNC, true},
	} {
		fd := p.Open(a.Path(c.name), c.flags|unix.O_CREAT)
		p.Must(lab.Call{Op: c.op, FD: fd, Data: "one"})
		b, err := os.ReadFile(v.InSource(c.name))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(b) == "one"; got != c.through {
			t.Errorf("%s: on the volume at once: %v", c.name, got)
		}
		p.Must(lab.Call{Op: "close", FD: fd})
	}
}

// The same where the volume's client has files opened past its kernel's cache: there is
// no other request on the way to the volume that says it than an FSYNC. And where it has
// not: the client is asked once.
func TestWriteThroughPastTheCache(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]lab.ClientConfig{"past": {PastCache: true}, "through": {}} {
		t.Run(name, func(t *testing.T) { testClientIsAskedToSync(t, config) })
	}
}

func testClientIsAskedToSync(t *testing.T, config lab.ClientConfig) {
	logs := t.TempDir()
	config.Requests = logs
	v := lab.NewVolumeOverClients(t, config, "--sync", "never")
	a := v.Mount("a")
	p := lab.NewAgent(t)
	asked := func() int { return requestsByName(t, filepath.Join(logs, "caching-a"))["FSYNC"] }
	for _, c := range []struct {
		name, op    string
		flags       int
		least, most int
	}{
		{"neither", "write", unix.O_WRONLY, 0, 0},
		{"RWF_DSYNC", "write through", unix.O_WRONLY, 1, 1},
		{"RWF_DSYNC of O_RDWR", "write through", unix.O_RDWR, 1, 2}, // the view's kernel asks, too
		{"RWF_DSYNC of O_APPEND", "write through", unix.O_RDWR | unix.O_APPEND, 1, 1},
		{"O_DSYNC", "write", unix.O_WRONLY | unix.O_DSYNC, 1, 1},
		{"O_SYNC", "write", unix.O_WRONLY | unix.O_SYNC, 1, 1},
		{"a copy", "copy", unix.O_RDWR, 0, 0},
		{"a copy with O_DSYNC", "copy", unix.O_RDWR | unix.O_DSYNC, 1, 1},
		{"fallocate", "fallocate", unix.O_WRONLY, 0, 0},
		{"fallocate with O_SYNC", "fallocate", unix.O_WRONLY | unix.O_SYNC, 1, 1},
	} {
		if err := os.WriteFile(v.InSource(c.name), []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, made := range []bool{false, true} {
			name, flags := c.name, c.flags
			if made && c.op != "copy" {
				name, flags = name+" of a new file", flags|unix.O_CREAT
			}
			fd := p.Open(a.Path(name), flags)
			before := asked()
			p.Must(lab.Call{Op: c.op, FD: fd, Data: "one", N: 3, Off: 10})
			if got := asked() - before; got < c.least || got > c.most {
				t.Errorf("%s: the volume's client is asked to sync %d times, want %d to %d", name, got, c.least, c.most)
			}
			p.Must(lab.Call{Op: "close", FD: fd})
		}
	}
}
