package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Environment variables that say what runs, and where.
const (
	envExtent     = "LOCKFS_CLUSTER" // extentSmoke or extentFull; else nothing runs
	envKubeconfig = "LOCKFS_TEST_KUBECONFIG"
	envImage      = "LOCKFS_TEST_IMAGE"

	extentSmoke = "smoke"
	extentFull  = "full"
)

// defaultImage is what the manifests name.
const defaultImage = "ghcr.io/lockfs/lockfs:v0.1.0"

var repository = func() string {
	dir, err := filepath.Abs("../..")
	if err != nil {
		panic(err)
	}
	return dir
}()

// scenario is one thing that happens to a cluster, in the order of the table.
type scenario struct {
	name  string
	run   func(c *cluster)
	smoke smoke
	lab   bool // needs a machine that can be cut off or killed
}

// smoke is in which short form a scenario is.
type smoke int

const (
	smokeNot    smoke = iota
	smokeLeases       // that of TestKubernetes
	smokeBoth
)

// Each leaves a cluster in which the example's programs take turns, but for the
// last, which leaves a node dead.
var scenarios = []scenario{
	{name: "Tutorial", run: followTutorial, smoke: smokeBoth},
	{name: "Append", run: appendAndCount, smoke: smokeBoth},
	{name: "People", run: tellPeople},
	{name: "KilledDaemon", run: killDaemon, smoke: smokeBoth},
	{name: "OpenHandle", run: openHandle},
	{name: "HandOver", run: handOver},
	{name: "KilledWorkers", run: killWorkers},
	{name: "Memory", run: exhaustMemory, lab: true},
	{name: "Evicted", run: evict},
	{name: "WithoutTakeover", run: withoutTakeover},
	{name: "Drain", run: drainNode},
	{name: "Away", run: daemonAway, smoke: smokeLeases},
	{name: "Config", run: changeConfig},
	{name: "CSI", run: useCSI},
	{name: "Partition", run: cutNode, smoke: smokeLeases, lab: true},
	{name: "NodeDeath", run: killNode, lab: true},
}

// TestKubernetes keeps the locks in Lease objects.
func TestKubernetes(t *testing.T) {
	testBackend(t, "kubernetes")
}

// TestEtcd keeps them in etcd, with TLS and a user for each namespace.
func TestEtcd(t *testing.T) { testBackend(t, "etcd") }

func testBackend(t *testing.T, overlay string) {
	if os.Getenv(envKubeconfig) == "" {
		t.Parallel() // each has a cluster of its own
	}
	extent, least := os.Getenv(envExtent), smokeBoth
	if overlay == "kubernetes" {
		least = smokeLeases
	}
	sizes := []int{2, 3}
	switch extent {
	case extentFull:
	case extentSmoke:
		sizes = sizes[:1]
	default:
		t.Skipf("set %s=%s or %s, or run make cluster-test", envExtent, extentSmoke, extentFull)
	}
	for _, nodes := range sizes {
		t.Run(fmt.Sprintf("%dNodes", nodes), func(t *testing.T) {
			c := newCluster(t, overlay, nodes)
			for _, s := range scenarios {
				if extent == extentSmoke && s.smoke < least || s.lab && c.lab == nil {
					continue
				}
				if !t.Run(s.name, func(t *testing.T) { s.run(c.with(t)) }) {
					c.report(t)
					return // what follows builds on it
				}
			}
		})
		if os.Getenv(envKubeconfig) != "" {
			break // it has the size that it has
		}
	}
}

// run runs a command in the repository and returns what it says.
func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = repository, append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}
