package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// overlayDir is the overlay as it is in the repository, or one that names
// another image.
func overlayDir(t *testing.T, overlay string) string {
	t.Helper()
	dir := filepath.Join("deploy/daemonset/overlays", overlay)
	image := os.Getenv(envImage)
	if image == "" {
		return dir
	}
	colon := strings.LastIndex(image, ":") // a registry may have a port
	if colon < 0 {
		t.Fatalf("$%s=%s has no tag", envImage, image)
	}
	own := t.TempDir()
	rel, err := filepath.Rel(own, filepath.Join(repository, dir))
	if err != nil {
		t.Fatal(err)
	}
	kustomization := fmt.Sprintf("resources: [%s]\nimages:\n- {name: ghcr.io/lockfs/lockfs, newName: %q, newTag: %q}\n", rel, image[:colon], image[colon+1:])
	if err := os.WriteFile(filepath.Join(own, "kustomization.yaml"), []byte(kustomization), 0o644); err != nil {
		t.Fatal(err)
	}
	return own
}

// tutorial returns the commands of a block of the tutorial, which are marked with a
// comment of that name.
func (c *cluster) tutorial(name string) string {
	c.t.Helper()
	return strings.ReplaceAll(c.documented("docs/tutorial/kubernetes.md", name), "deploy/daemonset/overlays/"+c.overlay, c.manifests)
}

// documented is tutorial for another document.
func (c *cluster) documented(document, name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, document))
	if err != nil {
		c.t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)<!-- cluster test: " + name + " -->\n+```\n(.*?)```")
	m := block.FindSubmatch(text)
	if m == nil {
		c.t.Fatalf("%s has no commands %q", document, name)
	}
	return string(m[1])
}

// daemonsReady waits until every node's daemon is.
func (c *cluster) daemonsReady() {
	c.t.Helper()
	c.eventually("every daemon is ready", func() bool { return c.ready(system, "lockfs") == len(c.nodes) })
}

// followTutorial does what the tutorial says, and sees what it promises. A pod that
// comes to a node before the first daemon waits, and its events say for what.
func followTutorial(c *cluster) {
	install := c.tutorial(c.overlay)
	daemonSet := strings.Index(install, "kubectl apply -k "+c.manifests)
	if daemonSet < 0 {
		c.t.Fatalf("the tutorial does not apply the overlay: %s", install)
	}
	c.t.Log(c.sh(install[:daemonSet]))
	early := c.startIn("/var/lib/lockfs/shared", "OnFailure", "early", c.nodes[0], "echo early >>/data/view/early")
	early.hasEvent("FailedMount")
	if phase := early.status().Phase; phase != "Pending" {
		c.t.Errorf("the early pod is %s, want it to wait", phase)
	}
	c.t.Log(c.sh(install[daemonSet:]))
	c.daemonsReady()
	c.t.Log(c.sh(c.tutorial("programs")))
	nodes := make(map[string]bool)
	for _, w := range c.writers() {
		nodes[w.node] = true
	}
	if len(nodes) < 2 && len(c.nodes) > 1 {
		c.t.Errorf("the writers are on %d node", len(nodes))
	}
	c.turnsGoOn("with a daemon on every node")
	early.wait()
	if got := c.shared(c.nodes[0], "early"); got != "early\n" {
		c.t.Errorf("the early pod has written %q", got)
	}
}
