package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/internal/longtest"
)

// setup is what the volumes of a test are made of: which lock service has their locks, and
// what their mounts are over. The zero setup is a local directory, with an etcd of its own.
type setup struct {
	name    string        // of the subtest
	client  *clientConfig // each mount is over a caching client of its own; nil: over the directory
	leases  bool          // the locks are in Leases; false: in etcd
	network bool          // the mounts are over the clients that $LOCKFS_TEST_VOLUME names
	long    bool          // only when there is time

	server *apiServer // of the Leases
	space  string     // its namespace that has them
}

// What over can run a test on.
var (
	local    = setup{name: "local"}
	inLeases = setup{name: "leases", leases: true}

	// Two mounts over one local directory hide how stale a network volume is: a caching
	// client of its own for each mount does not.
	overClients = setup{name: "clients", client: &clientConfig{}}
	// The same where the client goes on with what it knows of a file when the file is
	// opened, as FUSE clients may: an open asks the volume.
	overClientsThatKeep = setup{name: "keeping", client: &clientConfig{Keep: true}}
	// The same where the client believes nothing.
	overClientsThatDoubt = setup{name: "doubting", client: &clientConfig{Doubts: true}}

	// A network volume that somebody has mounted: $LOCKFS_TEST_VOLUME.
	onNetworkVolume = setup{name: "volume", network: true}
)

// forLong is the setup in a long run alone.
func (s setup) forLong() setup {
	s.long = true
	return s
}

// that is the setup with other clients.
func (s setup) that(config clientConfig) setup {
	s.client = &config
	return s
}

// over runs a test on each of the setups, as a subtest. With $LOCKFS_TEST_VOLUME it runs
// on that volume, or not at all.
func over(t *testing.T, test func(*testing.T, setup), setups ...setup) {
	t.Helper()
	if networkClients() != nil {
		setups = slices.DeleteFunc(setups, func(s setup) bool { return !s.network })
	} else {
		setups = slices.DeleteFunc(setups, func(s setup) bool { return s.network })
	}
	if len(setups) == 0 {
		t.Skip("runs on a network volume with $", volumeEnv, ", and without on others")
	}
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			if s.long {
				longtest.Only(t)
			}
			name, _, _ := strings.Cut(t.Name(), "/")
			if why := traits.Cannot[name]; s.network && why != "" {
				t.Skip("this volume cannot: ", why)
			}
			if s.leases {
				s.server = sharedServer(t)
				s.space = s.server.namespace(t)
			}
			test(t, s)
		})
	}
}

// notOnNetworkVolume skips the test if there is a network volume: over has not asked for it.
func notOnNetworkVolume(t *testing.T) {
	t.Helper()
	if networkClients() != nil {
		t.Skip("does not run on a network volume")
	}
}

// newVolume returns a volume of a local directory.
func newVolume(t *testing.T, args ...string) *volume {
	t.Helper()
	notOnNetworkVolume(t)
	return local.newVolume(t, args...)
}

// newVolumeOverClients returns one whose mounts are over caching clients.
func newVolumeOverClients(t *testing.T, config clientConfig, args ...string) *volume {
	t.Helper()
	notOnNetworkVolume(t)
	return setup{client: &config}.newVolume(t, args...)
}

func (s setup) newVolume(t *testing.T, args ...string) *volume {
	t.Helper()
	// Short, for the unix sockets below it.
	dir, err := os.MkdirTemp("/tmp", "lfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	v := &volume{t: t, dir: dir, source: filepath.Join(dir, "source"), state: filepath.Join(dir, "state"), args: args, caches: s.client}
	if s.network {
		v.onVolume(networkClients())
	}
	if err := os.Mkdir(v.source, 0o755); err != nil {
		t.Fatal(err)
	}
	v.env = append(os.Environ(), "LOCKFS_STATE_DIR="+v.state,
		"LOCKFS_GUARD=false") // else directories stay that cannot be removed
	if s.leases {
		v.env = append(append(v.env, s.env()...), fmt.Sprintf("LOCKFS_NAME=volume-%d", volumesInLeases.Add(1)))
	}
	return v
}

// newService returns the lock service of a trial.
func (s setup) newService(t *testing.T) service {
	t.Helper()
	if s.leases {
		return s.newLeases(t)
	}
	return newCluster(t)
}

// volumesInLeases makes the names of volumes in one API server differ.
var volumesInLeases atomic.Int64

// env has a mount keep its locks in the Leases.
func (s setup) env() []string {
	return []string{"KUBECONFIG=" + s.server.kubeconfig, "LOCKFS_BACKEND=kubernetes", "LOCKFS_LEASE_NAMESPACE=" + s.space,
		"LOCKFS_KUBE_QPS=1000", "LOCKFS_KUBE_BURST=1000"} // the tests are in a hurry
}

// apiServer is the API server of all tests with Leases, one at a time: they kill it.
type apiServer struct {
	*kubetest.Server
	kubeconfig string
	inUse      sync.Mutex
	err        error
}

var startServer = sync.OnceValue(func() *apiServer {
	s := &apiServer{}
	if s.Server, s.err = kubetest.Start(); s.err == nil {
		serverStarted.Store(s)
		s.kubeconfig, s.err = s.Kubeconfig()
	}
	return s
})

var serverStarted atomic.Pointer[apiServer]

// sharedServer is the API server, for this test alone.
func sharedServer(t *testing.T) *apiServer {
	t.Helper()
	s := startServer()
	if s.err != nil {
		t.Fatal(s.err)
	}
	s.inUse.Lock()
	t.Cleanup(s.inUse.Unlock)
	return s
}

// stopServer ends it, if a test has started it.
func stopServer() {
	if s := serverStarted.Load(); s != nil {
		s.Stop()
	}
}

// namespace makes one, for the test.
func (s *apiServer) namespace(t *testing.T) string {
	t.Helper()
	name, err := s.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.DropNamespace(name) })
	return name
}
