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

// smoke is with which locks the short form has a scenario.
type smoke int

const (
	smokeNot smoke = iota
	smokeLeases
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
func TestKubernetes(t *testing.T) { testInFull(t, inLeases) }

// TestEtcd keeps them in etcd, with TLS and a user for each namespace.
func TestEtcd(t *testing.T) { testInFull(t, inEtcd) }

func testInFull(t *testing.T, overlay string) {
	if os.Getenv(envExtent) != extentFull {
		t.Skipf("set %s=%s, or run make cluster-test", envExtent, extentFull)
	}
	if os.Getenv(envKubeconfig) == "" {
		t.Parallel() // each has a cluster of its own
	}
	for _, nodes := range []int{2, 3} {
		t.Run(fmt.Sprintf("%dNodes", nodes), func(t *testing.T) {
			newCluster(t, nodes).serving(overlay).goThrough(func(scenario) bool { return true })
		})
		if os.Getenv(envKubeconfig) != "" {
			break // it has the size that it has
		}
	}
}

// TestSmoke is the short form: one cluster, on which lockfs keeps its locks in Lease objects, is removed, and keeps
// them in etcd.
func TestSmoke(t *testing.T) {
	if os.Getenv(envExtent) != extentSmoke {
		t.Skipf("set %s=%s, or run make test", envExtent, extentSmoke)
	}
	c := newCluster(t, 2)
	if !t.Run(inLeases, func(t *testing.T) {
		c := c.with(t).serving(inLeases)
		c.goThrough(func(s scenario) bool { return s.smoke >= smokeLeases })
		c.uninstall()
	}) {
		return
	}
	t.Run(inEtcd, func(t *testing.T) {
		c.with(t).serving(inEtcd).goThrough(func(s scenario) bool { return s.smoke == smokeBoth })
	})
}

// goThrough plays the scenarios that are wanted.
func (c *cluster) goThrough(wanted func(scenario) bool) {
	c.t.Helper()
	for _, s := range scenarios {
		if !wanted(s) || s.lab && c.lab == nil {
			continue
		}
		if !c.t.Run(s.name, func(t *testing.T) { s.run(c.with(t)) }) {
			c.report(c.t)
			c.t.FailNow() // what follows builds on it
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
