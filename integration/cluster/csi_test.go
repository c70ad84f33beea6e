package cluster

import (
	"os"
	"strings"
)

const csiExample = "lockfs-csi-example"

// useCSI adds the CSI driver to the overlay, runs its example, kills and restarts the daemons under it,
// and removes both. Pods ask for nothing but a volume, and are the same processes at the end.
func useCSI(c *cluster) {
	if os.Getenv(envImage) != "" {
		c.t.Skip("the driver's overlay names the repository's image")
	}
	install := strings.ReplaceAll(c.documented("docs/CSI.md", "csi"), "overlays/kubernetes-csi", "overlays/"+c.overlay+"-csi")
	c.t.Log(c.sh(install))
	c.daemonsReady()
	driversReady := func() {
		c.t.Helper()
		c.eventually("every driver is ready", func() bool { return c.ready(system, "lockfs-csi-node") == len(c.nodes) })
	}
	driversReady()
	c.t.Log(c.sh(c.documented("docs/CSI.md", "csi-programs")))

	pods := func() string {
		return c.kubectl("-n", csiExample, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	}
	before := pods()
	turns := func() map[string]int {
		finished, err := parseTurns(c.shared(c.nodes[0], "csi-log"))
		if err != nil {
			c.t.Fatal(err)
		}
		return finished
	}
	goOn := func(when string) {
		c.t.Helper()
		was := turns()
		c.eventually("the writers on a CSI volume take turns "+when, func() bool {
			now := turns()
			for line := range strings.Lines(before) {
				name, _, _ := strings.Cut(line, " ")
				if now[name] < was[name]+3 {
					return false
				}
			}
			return true
		})
	}
	goOn("at first")
	for line := range strings.Lines(before) {
		node := strings.Fields(line)[1]
		c.on(node, "kill -9 "+c.daemonPID(node))
	}
	goOn("after their daemons were killed")
	c.daemonsReady()
	c.kubectl("-n", system, "rollout", "restart", "daemonset/lockfs", "daemonset/lockfs-csi-node")
	c.daemonsReady()
	driversReady()
	goOn("after rolling restarts")
	if now := pods(); now != before {
		c.t.Errorf("the pods were\n%sand are\n%s", before, now)
	}

	claims := func() string { return strings.TrimSpace(c.on(c.nodes[0], "ls /srv/shared/claims")) }
	if got := claims(); !strings.HasPrefix(got, "pvc-") || strings.Contains(got, "\n") {
		c.t.Errorf("the claims' directories are %q", got)
	}
	c.kubectl("delete", "-k", "deploy/csi/examples")
	c.eventually("the claim's directory is removed", func() bool { return claims() == "" })
	for _, node := range c.nodes {
		if left := c.on(node, "grep -c 'kubernetes.io~csi.* fuse.lockfs ' /proc/1/mountinfo || true"); strings.TrimSpace(left) != "0" {
			c.t.Errorf("%s mounts of the driver are left on %s", left, node)
		}
	}
	c.t.Log(c.sh(c.documented("docs/CSI.md", "csi-remove")))
	c.turnsGoOn("without the driver again")
}
