package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Volume is one shared directory and the state of its embedded etcd.
type Volume struct {
	T      *testing.T
	Dir    string // of the test
	Source string
	State  string // directory of the embedded etcd's, in memory: fsync costs nothing there
	Env    []string
	Args   []string      // of each mount
	Caches *ClientConfig // each mount has a caching client of its own; nil: it has not
	// Clients are directories of one network volume, each of its own client; by is which a mount
	// is over.
	Clients []string
	by      map[string]string
	Own     map[string]*Client // the caching backings, by the mount's name
	Via     []string           // the command that runs lockfs; none if empty

	kubeconfig, space string // of the Leases; empty: the locks are not in Leases

	mu      sync.Mutex
	started []*Mount // GUARDED_BY(mu)
	leases  lister   // GUARDED_BY(mu); nil: not connected
}

// Command is lockfs with the volume's environment.
func (v *Volume) Command(args ...string) *exec.Cmd {
	args = slices.Concat(v.Via, []string{Program}, args)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = v.Env
	return cmd
}

// HasClients reports whether each mount has a client of the volume of its own.
func (v *Volume) HasClients() bool { return v.Caches != nil || v.Clients != nil }

// Waiting counts the waiters for path.
func (v *Volume) Waiting(path string) int {
	v.T.Helper()
	n := 0
	for _, e := range v.LS() {
		if e.Path == path && e.State == "waiting" {
			n++
		}
	}
	return n
}

// Read returns a file of the shared directory itself.
func (v *Volume) Read(name string) string {
	v.T.Helper()
	b, err := os.ReadFile(filepath.Join(v.Source, name))
	if err != nil {
		v.T.Fatal(err)
	}
	return string(b)
}

// Write makes a file of the shared directory itself.
func (v *Volume) Write(name, data string) {
	v.T.Helper()
	if err := os.WriteFile(filepath.Join(v.Source, name), []byte(data), 0o644); err != nil {
		v.T.Fatal(err)
	}
}

// InMemory puts a tmpfs on a directory until the test ends. The next daemon on a machine gives a dead
// one's locks back after a sync of the volume, which on a busy disk takes too long.
func InMemory(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("none", dir, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
}

// NewUser starts an unprivileged user's program, also in group unless that is 0, in a volume open
// to all.
func (v *Volume) NewUser(uid, group int) *Agent {
	v.T.Helper()
	if err := os.Chmod(v.Dir, 0o755); err != nil {
		v.T.Fatal(err)
	}
	a := NewAgent(v.T)
	a.Must(Call{Op: "become", N: uid, Off: int64(group)})
	return a
}

func (v *Volume) InSource(name string) string { return filepath.Join(v.Source, name) }

// WaitFor returns when somebody waits for path in etcd.
func (v *Volume) WaitFor(path string) {
	v.T.Helper()
	Eventually(v.T, "somebody waits for "+path, func() bool { return v.Waiting(path) == 1 })
}

// Namespace is the volume's own in the lock service.
func (v *Volume) Namespace() string { return filepath.Base(v.Dir) }
