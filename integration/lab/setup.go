package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/lockfs/lockfs/internal/longtest"
)

// Setup is a test's lock service and what its mounts are over. Zero: a local directory, with its
// etcd.
type Setup struct {
	name    string        // of the subtest
	client  *ClientConfig // each mount is over a caching client of its own; nil: over the directory
	Leases  bool          // the locks are in Leases; false: in etcd
	network bool          // the mounts are over the clients that $LOCKFS_TEST_VOLUME names
	long    bool          // only when there is time
	Flags   []string      // of the mounts
	alone   bool          // no other test uses the API server meanwhile

	Server *apiServer // of the Leases
	Space  string     // its namespace that has them
}

// What Over can run a test on.
var (
	Local    = Setup{name: "local"}
	InLeases = Setup{name: "leases", Leases: true}

	// The mounts keep no locks: each is released at the last close.
	Releasing = Setup{name: "releasing", Flags: []string{"--keep", "0"}}

	// Two mounts over one local directory hide how stale a network volume is; caching clients do
	// not.
	OverClients = Setup{name: "clients", client: &ClientConfig{}}
	// The same where the client goes on with what it knows of a file when the file is
	// opened, as FUSE clients may: an open asks the volume.
	OverClientsThatKeep = Setup{name: "keeping", client: &ClientConfig{Keep: true}}
	// The same where the client believes nothing.
	OverClientsThatDoubt = Setup{name: "doubting", client: &ClientConfig{Doubts: true}}

	// A network volume that somebody has mounted: $LOCKFS_TEST_VOLUME.
	OnNetworkVolume = Setup{name: "volume", network: true}
)

// ForLong is the setup in a long run alone.
func (s Setup) ForLong() Setup {
	s.long = true
	return s
}

// Alone is the setup for a test that stops the API server, or reads its history.
func (s Setup) Alone() Setup {
	s.alone = true
	return s
}

// That is the setup with other clients.
func (s Setup) That(config ClientConfig) Setup {
	s.client = &config
	return s
}

// Over runs a test on each setup, as a subtest beside other tests. With $LOCKFS_TEST_VOLUME it
// runs on that volume, alone, or not at all.
func Over(t *testing.T, test func(*testing.T, Setup), setups ...Setup) {
	t.Helper()
	over(t, NetworkClients() == nil, test, setups)
}

// InTurn is Over for a test that has the machine to itself, on one setup after the other.
func InTurn(t *testing.T, test func(*testing.T, Setup), setups ...Setup) {
	t.Helper()
	over(t, false, test, setups)
}

func over(t *testing.T, beside bool, test func(*testing.T, Setup), setups []Setup) {
	t.Helper()
	there := NetworkClients() != nil
	setups = slices.DeleteFunc(setups, func(s Setup) bool { return s.network != there })
	if beside {
		t.Parallel()
	}
	if len(setups) == 0 {
		t.Skip("runs on a network volume with $", volumeEnv, ", and without on others")
	}
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			if beside {
				t.Parallel()
			}
			if s.long {
				longtest.Only(t)
			}
			if s.Leases {
				s.Server = sharedServer(t, s.alone)
				s.Space = s.Server.namespace(t)
			}
			test(t, s)
		})
	}
}

// notOnNetworkVolume skips the test if there is a network volume: Over has not asked for it.
func notOnNetworkVolume(t *testing.T) {
	t.Helper()
	if NetworkClients() != nil {
		t.Skip("does not run on a network volume")
	}
}

// NewVolume returns a volume of a local directory.
func NewVolume(t *testing.T, args ...string) *Volume {
	t.Helper()
	notOnNetworkVolume(t)
	return Local.NewVolume(t, args...)
}

// NewVolumeOverClients returns one whose mounts are over caching clients.
func NewVolumeOverClients(t *testing.T, config ClientConfig, args ...string) *Volume {
	t.Helper()
	notOnNetworkVolume(t)
	return Setup{client: &config}.NewVolume(t, args...)
}

func (s Setup) NewVolume(t *testing.T, args ...string) *Volume {
	t.Helper()
	dir, state := shortDir(t, "/tmp"), shortDir(t, "/dev/shm")
	v := &Volume{T: t, Dir: dir, Source: filepath.Join(dir, "source"), State: state, Args: args, Caches: s.client}
	if s.network {
		v.onVolume(NetworkClients())
	}
	if err := os.Mkdir(v.Source, 0o755); err != nil {
		t.Fatal(err)
	}
	v.Env = append(os.Environ(), "LOCKFS_STATE_DIR="+v.State,
		"LOCKFS_GUARD=false") // else directories stay that cannot be removed
	if s.Leases {
		v.kubeconfig, v.space = s.Server.KubeconfigFile, s.Space
		v.Env = append(append(v.Env, s.env()...), fmt.Sprintf("LOCKFS_NAME=volume-%d", volumesInLeases.Add(1)))
	}
	return v
}

// shortDir makes a directory for unix sockets, whose paths may not be long.
func shortDir(t *testing.T, in string) string {
	t.Helper()
	dir, err := os.MkdirTemp(in, "lfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// NewService returns the lock service of a trial.
func (s Setup) NewService(t *testing.T) Service {
	t.Helper()
	if s.Leases {
		return s.NewLeases(t)
	}
	return NewCluster(t)
}

// env has a mount keep its locks in the Leases.
func (s Setup) env() []string {
	return []string{"KUBECONFIG=" + s.Server.KubeconfigFile, "LOCKFS_BACKEND=kubernetes", "LOCKFS_LEASE_NAMESPACE=" + s.Space,
		"LOCKFS_KUBE_QPS=1000", "LOCKFS_KUBE_BURST=1000"} // the tests are in a hurry
}
