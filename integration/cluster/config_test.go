package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// configure makes text the daemons' lockfs.yaml, and has the kubelets bring it
// to them now rather than within a minute.
func (c *cluster) configure(text string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "lockfs.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	c.sh("kubectl -n lockfs-system create configmap lockfs --from-file=" + file + " --dry-run=client -o yaml | kubectl apply -f -")
	c.nudges++
	c.kubectl("-n", system, "annotate", "pods", "-l", "app.kubernetes.io/name=lockfs", "--overwrite", fmt.Sprintf("lockfs-test/nudge=%d", c.nudges))
}

// logged waits until each daemon has logged something.
func (c *cluster) logged(what ...string) {
	c.t.Helper()
	for _, node := range c.nodes {
		c.eventually(fmt.Sprintf("the daemon on %s logs %q", node, what), func() bool {
			log := c.kubectl("-n", system, "logs", c.podOn(system, "lockfs", node))
			for line := range strings.Lines(log) {
				if containsAll(line, what) {
					return true
				}
			}
			return false
		})
	}
}

func containsAll(s string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(s, p) {
			return false
		}
	}
	return true
}

// changeConfig: a file with a mistake is refused, a new volume is served, one
// with the credentials of another namespace is not, and meanwhile nobody touches
// the volumes that did not change.
func changeConfig(c *cluster) {
	check := c.undisturbed()
	node := c.nodes[0]
	b, err := os.ReadFile(filepath.Join(repository, "deploy/daemonset/overlays", c.overlay, "lockfs.yaml"))
	if err != nil {
		c.t.Fatal(err)
	}
	before := string(b)
	view := func() string { return c.on(node, "stat -c %d /var/lib/lockfs/shared/view") }
	device := view()

	c.configure(before + "  wiat: 3s\n")
	c.logged("was refused", fmt.Sprintf("lockfs.yaml:%d", strings.Count(before, "\n")+1), "wiat")

	c.on(node, "mkdir -p -m 1777 /srv/shared/third && chmod 1777 /srv/shared/third")
	// As the last volume, with another name and place, and whatever else it has.
	_, last, _ := strings.Cut(before, "- namespace: team-a\n")
	third := "- namespace: team-a\n" + strings.NewReplacer("name: media", "name: third", "/srv/media", "/srv/shared/third", "team-a-media", "third").Replace(last)
	c.configure(before + third)
	p := c.startIn("/var/lib/lockfs/third", "OnFailure", "third", node, "echo third >>/data/view/file")
	p.wait()
	if got := c.shared(node, "third/file"); got != "third\n" {
		c.t.Errorf("the new volume has %q", got)
	}
	if c.overlay == inEtcd {
		foreign := strings.NewReplacer("namespace: team-a", "namespace: team-b", "third", "foreign").Replace(third)
		c.on(node, "mkdir -p -m 1777 /srv/shared/foreign")
		c.configure(before + foreign)
		c.logged("team-b", "foreign", "permission denied")
	}
	c.configure(before)
	c.eventually("the third volume is gone", func() bool {
		return strings.TrimSpace(c.on(node, "stat -f -c %t /var/lib/lockfs/third/view")) != fuseMagic
	})
	c.daemonsReady()
	if now := view(); now != device {
		c.t.Errorf("the volume that did not change was mounted anew: device %s, was %s", now, device)
	}
	c.turnsGoOn("after the configuration has changed")
	check()
}

// fuseMagic is what statfs says of a FUSE mount.
const fuseMagic = "65735546"
