package integration

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// caching is a mount's own caching backing, which starts with the first
// mount of that name.
func (v *volume) caching(name string) (dir string) {
	v.t.Helper()
	dir = filepath.Join(v.dir, "caching-"+name)
	if fsType(dir) == unix.FUSE_SUPER_MAGIC {
		return dir
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		v.t.Fatal(err)
	}
	if v.own == nil {
		v.own = make(map[string]*netClient)
	}
	v.own[name] = startClient(v.t, v.source, dir, *v.caches)
	return dir
}

// netClient is a process that serves a caching backing.
type netClient struct {
	cmd *exec.Cmd
	in  io.Closer
	dir string // where it is mounted
}

// startClient mounts a caching backing of source at dir.
func startClient(t *testing.T, source, dir string, config clientConfig) *netClient {
	t.Helper()
	// A process of its own, so that one that hangs does not take the test along.
	config.Source, config.Mountpoint = source, dir
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &netClient{dir: dir, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), clientEnv+"="+string(text))
	c.cmd.Stderr = os.Stderr
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.in.Close()
		_ = c.cmd.Wait()
		_ = unix.Unmount(dir, unix.MNT_DETACH)
	})
	eventually(t, "the caching backing is mounted", func() bool { return fsType(dir) == unix.FUSE_SUPER_MAGIC })
	return c
}

// kill ends the client at once. Its mount stays, and answers ENOTCONN.
func (c *netClient) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// endpoint is the etcd of a volume with caching backings: the embedded one of
// a mount that has none, and that nobody uses.
func (v *volume) endpoint() string {
	v.t.Helper()
	if found, _ := filepath.Glob(filepath.Join(v.state, "embedded", "*", "client.sock")); found == nil {
		v.startOver(v.source, "etcd", "--embedded").appears()
	}
	return "unix://" + v.stateFile("client.sock")
}

// A file that was replaced elsewhere is no more, however the client says so: whoever
// calls by the name gets the one that has it.
func TestReplacedElsewhere(t *testing.T) {
	for says, config := range map[string]clientConfig{"ESTALE": {}, "ENOENT": {Absent: true}} {
		t.Run(says, func(t *testing.T) {
			v := newVolumeOverClients(t, config)
			v.inMemory()
			a, b := v.mount("a"), v.mount("b")
			here, there := newAgent(t), newAgent(t)
			for name, c := range map[string]call{
				"read":   {Op: "open", Flags: rdonly},
				"write":  {Op: "open", Flags: rdwr},
				"create": {Op: "open", Flags: rdwr | unix.O_CREAT, Mode: 0o644},
				"link":   {Op: "link", Path2: b.path("linked")},
			} {
				v.write(name, "old")
				v.write("new", "new")
				c.Path = b.path(name)
				here.must(call{Op: "mode", Path: c.Path})
				there.must(call{Op: "rename", Path: a.path("new"), Path2: a.path(name)})
				if r := here.do(c); r.Errno != 0 {
					t.Errorf("%s: %v", name, r.Errno)
				}
			}
		})
	}
}

// A name that the client believes, of a file that another mount has moved and
// writes to, leads no writer to it.
func TestNamesThatAClientBelieves(t *testing.T) {
	v := newVolumeOverClients(t, clientConfig{})
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "held")
	holder, other := newAgent(t), newAgent(t)
	r := other.open(b.path("f"), rdonly)
	holder.must(call{Op: "rename", Path: a.path("f"), Path2: a.path("g")})
	fd := holder.open(a.path("g"), rdwr)
	for _, c := range []struct {
		call
		want unix.Errno
	}{
		{call{Op: "truncate", Path: b.path("f")}, unix.ENOENT},
		{call{Op: "open", Path: procFD(r), Flags: wronly | trunc}, unix.EBUSY},
		{call{Op: "open", Path: b.path("f"), Flags: wronly | trunc}, unix.ENOENT},
		{call{Op: "unlink", Path: b.path("f")}, unix.ENOENT},
		{call{Op: "rename", Path: b.path("f"), Path2: b.path("h")}, unix.ENOENT},
		{call{Op: "link", Path: b.path("f"), Path2: b.path("h")}, unix.ENOENT},
		{call{Op: "open", Path: b.path("g"), Flags: wronly | trunc | nonblock}, unix.EAGAIN},
	} {
		other.fails(c.call, c.want)
	}
	if got := holder.do(call{Op: "pread", FD: fd, N: 10}); got.Data != "held" {
		t.Errorf("the file holds %q, %v", got.Data, got.Err())
	}
	// A reader may be led to it; one that the volume has removed is looked for again.
	holder.must(call{Op: "unlink", Path: a.path("g")})
	v.write("f", "new")
	other.sees(b.path("f"), "new")
}
