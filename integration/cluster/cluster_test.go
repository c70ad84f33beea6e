package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Namespaces of the manifests, and of what the tests add.
const (
	system  = "lockfs-system"
	example = "lockfs-example"
	ours    = "lockfs-test"
)

// cluster is a Kubernetes that lockfs is installed in.
type cluster struct {
	t         *testing.T
	overlay   string
	manifests string // the overlay's directory
	nodes     []string
	lab       *lab              // nil if its machines are not ours
	path      string            // a PATH with a kubectl for it
	hands     map[string]string // the hand on each node
	nudges    int
}

// newCluster makes, or takes, a cluster of so many nodes.
func newCluster(t *testing.T, overlay string, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t, overlay: overlay, manifests: overlayDir(t, overlay)}
	if os.Getenv(envKubeconfig) == "" {
		c.lab = newLab(t, nodes)
		c.lab.loadImage(t, defaultImage)
	}
	if c.lab == nil {
		t.Cleanup(func() { c.remove(t) })
	}
	c.path = kubectlDir(t, c.lab) + ":" + os.Getenv("PATH")
	c.nodes = strings.Fields(c.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	c.apply(handManifest)
	c.eventually("the hands are ready", func() bool { return c.ready(ours, "hand") == len(c.nodes) })
	c.hands = make(map[string]string)
	for _, node := range c.nodes {
		c.hands[node] = c.podOn(ours, "hand", node)
	}
	if found := c.on(c.nodes[0], "ls -A /srv/shared"); found != "" {
		t.Fatalf("the shared directory has files already, give an empty one: %s", found)
	}
	return c
}

// remove takes everything from a cluster that is not ours.
func (c *cluster) remove(t *testing.T) {
	for _, args := range [][]string{
		{"delete", "--ignore-not-found", "-k", "deploy/daemonset/examples"},
		{"delete", "--ignore-not-found", "-k", c.manifests}, // the views, before what looks at them
		{"delete", "--ignore-not-found", "-k", "deploy/etcd"},
		{"delete", "--ignore-not-found", "namespace", ours},
	} {
		if _, err := c.try(args...); err != nil {
			t.Error(err)
		}
	}
}

// with is the cluster in a test of its own.
func (c *cluster) with(t *testing.T) *cluster {
	sub := *c
	sub.t = t
	return &sub
}

// sh runs a script in the repository, with kubectl for the cluster.
func (c *cluster) sh(script string) string {
	c.t.Helper()
	return run(c.t, []string{"PATH=" + c.path, "LOCKFS_PKI=" + filepath.Join(c.t.TempDir(), "pki")}, "bash", "-euo", "pipefail", "-c", script)
}

// try runs kubectl.
func (c *cluster) try(args ...string) (string, error) {
	cmd := exec.Command(filepath.Join(filepath.SplitList(c.path)[0], "kubectl"), args...)
	cmd.Dir = repository
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, &stderr)
	}
	return stdout.String(), nil
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// get reads an object, or a list.
func (c *cluster) get(into any, args ...string) {
	c.t.Helper()
	out := c.kubectl(append([]string{"get", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		c.t.Fatal(err)
	}
}

// apply makes objects of a manifest.
func (c *cluster) apply(manifest string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}

// eventually waits for a condition that has to come true.
func (c *cluster) eventually(what string, cond func() bool) {
	c.t.Helper()
	const patience = 2 * time.Minute
	deadline := time.Now().Add(patience)
	for !cond() {
		if time.Now().After(deadline) {
			c.t.Fatalf("not in %v: %s", patience, what)
		}
		time.Sleep(500 * time.Millisecond) // a kubectl takes 100 ms of a core
	}
}

// ready counts the ready pods of a DaemonSet.
func (c *cluster) ready(namespace, name string) int {
	c.t.Helper()
	var ds struct {
		Metadata struct{ Generation int }
		Status   struct {
			ObservedGeneration, NumberReady, UpdatedNumberScheduled, NumberAvailable int
		}
	}
	c.get(&ds, "-n", namespace, "daemonset", name)
	if ds.Status.ObservedGeneration != ds.Metadata.Generation {
		return 0
	}
	return min(ds.Status.NumberReady, ds.Status.UpdatedNumberScheduled, ds.Status.NumberAvailable)
}

// podOn names the pod of a DaemonSet on a node.
func (c *cluster) podOn(namespace, name, node string) string {
	c.t.Helper()
	return strings.TrimSpace(c.kubectl("-n", namespace, "get", "pods", "-l", "app.kubernetes.io/name="+name,
		"--field-selector", "status.phase=Running,spec.nodeName="+node, "-o", "jsonpath={.items[*].metadata.name}"))
}

// report says what the cluster looks like after a test that failed.
func (c *cluster) report(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{
		{"get", "pods", "-A", "-o", "wide"},
		{"get", "events", "-A", "--field-selector=type=Warning"},
		{"-n", system, "logs", "-l", "app.kubernetes.io/name=lockfs", "--tail=60", "--prefix"},
		{"-n", ours, "logs", "-l", "lockfs-test/program", "--tail=20", "--prefix"},
	} {
		out, err := c.try(args...)
		t.Logf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
