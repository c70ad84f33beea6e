package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// Overlays of the manifests: where the locks are.
const (
	inLeases = "kubernetes"
	inEtcd   = "etcd"
)

// cluster is a Kubernetes that lockfs is installed in.
type cluster struct {
	t         *testing.T
	nodes     []string
	lab       *lab   // nil if its machines are not ours
	path      string // a PATH with a kubectl for it
	overlay   string
	manifests string            // the overlay's directory
	hands     map[string]string // the hand on each node
	nudges    int
}

// newCluster makes, or takes, a cluster of so many nodes.
func newCluster(t *testing.T, nodes int) *cluster {
	t.Helper()
	c := &cluster{t: t}
	if os.Getenv(envKubeconfig) == "" {
		c.lab = newLab(t, nodes)
		c.lab.loadImage(t, defaultImage)
	}
	c.path = kubectlDir(t, c.lab) + ":" + os.Getenv("PATH")
	c.nodes = strings.Fields(c.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"))
	return c
}

// serving is the cluster made ready for an overlay. If the cluster is not ours, the objects go with the test.
func (c *cluster) serving(overlay string) *cluster {
	c.t.Helper()
	c = c.with(c.t)
	c.overlay, c.manifests = overlay, overlayDir(c.t, overlay)
	if c.lab == nil {
		c.t.Cleanup(func() { c.remove(c.t) })
	}
	c.apply(handManifest)
	c.eventually("the hands are ready", func() bool { return c.ready(ours, "hand") == len(c.nodes) })
	c.hands = make(map[string]string)
	for _, node := range c.nodes {
		c.hands[node] = c.podOn(ours, "hand", node)
	}
	if found := c.on(c.nodes[0], "ls -A /srv/shared"); found != "" {
		c.t.Fatalf("the shared directory has files already, give an empty one: %s", found)
	}
	return c
}

// uninstall removes lockfs as docs/OPERATIONS.md has it, and the shared files, so that the cluster can serve another
// overlay.
func (c *cluster) uninstall() {
	c.t.Helper()
	c.kubectl("delete", "-k", "deploy/daemonset/examples")
	c.kubectl("-n", system, "delete", "daemonset", "lockfs")
	c.cleanUp()
	c.on(c.nodes[0], "find /srv/shared /srv/media -mindepth 1 -maxdepth 1 -exec rm -r {} +")
	c.remove(c.t)
}

// cleanUp removes what lockfs has left on the nodes, when no daemon runs any more, and nothing else.
func (c *cluster) cleanUp() {
	c.t.Helper()
	c.eventually("no daemon runs", func() bool {
		return !slices.ContainsFunc(c.nodes, func(node string) bool { return c.daemonPID(node) != "" })
	})
	shared := func() string { return c.on(c.nodes[0], "find /srv/shared /srv/media | sort") }
	before := shared()
	for _, node := range c.nodes {
		c.t.Log(c.sh(strings.ReplaceAll(c.documented("docs/OPERATIONS.md", "cleanup"), "node-1", node)))
		if left := c.on(node, "ls -A /var/lib/lockfs"); left != "" {
			c.t.Errorf("left on %s: %s", node, left)
		}
	}
	if after := shared(); after != before {
		c.t.Errorf("the shared directories held %s, now %s", before, after)
	}
}

// remove takes all objects that the tests have made from a cluster that goes on.
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

// late matches what kubectl says when the API server, or a kubelet, was too slow to answer.
var late = regexp.MustCompile(`TLS handshake timeout|request timed out|i/o timeout|Client\.Timeout exceeded|error dialing backend`)

// kubectl is try for what has to succeed. What only reads is repeated when the answer was late.
func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.try(args...)
	reads := slices.Contains(args, "get") || slices.Contains(args, "logs")
	for tries := 1; err != nil && reads && late.MatchString(err.Error()) && tries < 5; tries++ {
		out, err = c.try(args...)
	}
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
