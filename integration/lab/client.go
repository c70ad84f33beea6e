package lab

import (
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/volume"
)

// Caching is a mount's own caching backing, which starts with its first mount.
func (v *Volume) Caching(name string) (dir string) {
	v.T.Helper()
	dir = filepath.Join(v.Dir, "caching-"+name)
	if FSType(dir) == unix.FUSE_SUPER_MAGIC {
		return dir
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		v.T.Fatal(err)
	}
	if v.Own == nil {
		v.Own = make(map[string]*Client)
	}
	v.Own[name] = StartClient(v.T, v.Source, dir, *v.Caches)
	return dir
}

// MountBelow mounts a view of a local directory in which one of the volume's clients is mounted,
// as "below". Each mount has its own such directory, with the same marker.
func (v *Volume) MountBelow(name string) *Mount {
	v.T.Helper()
	local := v.local(name)
	below := filepath.Join(local, "below")
	if err := os.MkdirAll(below, 0o755); err != nil {
		v.T.Fatal(err)
	}
	if err := unix.Mount(v.Client(name), below, "", unix.MS_BIND, ""); err != nil {
		v.T.Skip("only root may mount: ", err)
	}
	v.T.Cleanup(func() { _ = unix.Unmount(below, unix.MNT_DETACH) })
	if first, _ := filepath.Glob(v.local("*") + "/" + volume.MarkerName); first != nil {
		marker, err := os.ReadFile(first[0])
		if err == nil {
			err = os.WriteFile(filepath.Join(local, volume.MarkerName), marker, 0o644)
		}
		if err != nil {
			v.T.Fatal(err)
		}
	}
	return v.mounted(func() *Mount { return v.startOver(local, name, "--name", "local", "--endpoints", v.Endpoint()) })
}

// LSBelow returns what 'lockfs ls' says of the volume that a MountBelow is of.
func (v *Volume) LSBelow(m *Mount) []Entry {
	v.T.Helper()
	return v.LSOf("--name", "local", "--endpoints", v.Endpoint(), v.local(m.Name))
}

func (v *Volume) local(mount string) string { return filepath.Join(v.Dir, "local-"+mount) }

// Client is a process that serves a caching backing.
type Client struct {
	cmd *exec.Cmd
	in  io.Closer
	Dir string // where it is mounted
}

// StartClient mounts a caching backing of source at dir.
func StartClient(t *testing.T, source, dir string, config ClientConfig) *Client {
	t.Helper()
	// A process of its own, so that one that hangs does not take the test along.
	config.Source, config.Mountpoint = source, dir
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c := &Client{Dir: dir, cmd: exec.Command(os.Args[0])}
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
	Eventually(t, "the caching backing is mounted", func() bool { return FSType(dir) == unix.FUSE_SUPER_MAGIC })
	return c
}

// Kill ends the client at once. Its mount stays, and answers ENOTCONN.
func (c *Client) Kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

// Endpoint is the etcd of a volume with caching backings: embedded in an unused mount without one.
func (v *Volume) Endpoint() string {
	v.T.Helper()
	if !v.embedded() {
		v.mounted(func() *Mount { return v.startOver(v.Source, "etcd", "--embedded") })
	}
	return v.endpoint()
}
