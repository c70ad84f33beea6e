package cluster

import (
	"strings"
	"time"
)

// killDaemon: the view of a daemon whose container was killed comes back by itself in pods
// that run.
func killDaemon(c *cluster) {
	check := c.undisturbed()
	w := c.writers()[0]
	pid := c.daemonPID(w.node)
	if pid == "" {
		c.t.Fatal("no daemon runs on ", w.node)
	}
	killed := time.Now()
	c.on(w.node, "kill -9 "+pid)
	before := c.turns()[w.name]
	c.eventually("a pod on the daemon's node writes again", func() bool { return c.turns()[w.name] > before })
	c.t.Logf("%v after the death of the daemon's container a pod of its node has finished its next turn", time.Since(killed).Round(100*time.Millisecond))
	c.daemonsReady()
	c.turnsGoOn("after a daemon was killed")
	check()
}

// openHandle: what a program sees that has a file open while the daemon's container is
// killed, and what it has to do.
func openHandle(c *cluster) {
	node := c.nodes[0]
	p := c.openUntilLost("open", node)
	c.on(node, "kill -9 "+c.daemonPID(node))
	killed := time.Now()
	p.wait()
	c.t.Logf("%v after the death of the daemon's container the file was open again", time.Since(killed).Round(100*time.Millisecond))
	p.lost()
	c.daemonsReady()
}

// openUntilLost starts a program that writes to an open file until it cannot, and then opens it again.
func (c *cluster) openUntilLost(name, node string) *program {
	c.t.Helper()
	p := c.start(name+"-"+node, node, `exec 3>>/data/view/held-$HOSTNAME && echo opened
while echo x >&3; do sleep 0.1; done
echo failed
until (echo again >>/data/view/held-$HOSTNAME); do sleep 0.1; done
echo reopened`)
	p.says("opened")
	return p
}

// lost checks what a program of openUntilLost was told.
func (p *program) lost() {
	p.c.t.Helper()
	if log := p.log(); !strings.Contains(log, "not connected") && !strings.Contains(log, "connection abort") {
		p.c.t.Errorf("the program saw %q, want ENOTCONN or ECONNABORTED", log)
	}
}

// evict: a daemon whose pod is evicted lets its locks go, and programs whose files are open have to open
// them again.
func evict(c *cluster) {
	check := c.undisturbed()
	for _, node := range c.nodes {
		p := c.openUntilLost("evicted", node)
		pod := c.podOn(system, "lockfs", node)
		start := time.Now()
		c.sh("kubectl create --raw /api/v1/namespaces/" + system + "/pods/" + pod + `/eviction -f - <<<'{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "` + pod + `", "namespace": "` + system + `"}}'`)
		p.wait()
		c.t.Logf("%v after the eviction of the daemon's pod the file was open again", time.Since(start).Round(100*time.Millisecond))
		p.lost()
		c.daemonsReady()
	}
	c.turnsGoOn("after evictions")
	check()
}

// withoutTakeover: an upgrade without takeover costs programs their open files, and a pause.
func withoutTakeover(c *cluster) {
	check := c.undisturbed()
	node := c.nodes[0]
	p := c.openUntilLost("restarted", node)
	c.sh(c.documented("docs/how-to/upgrade.md", "without takeover"))
	start := time.Now()
	c.kubectl("-n", system, "rollout", "restart", "daemonset/lockfs")
	c.daemonsReady()
	c.t.Logf("%d daemons were restarted in %v", len(c.nodes), time.Since(start).Round(100*time.Millisecond))
	p.wait()
	p.lost()
	c.turnsGoOn("after a rolling restart")
	check()
	c.kubectl("apply", "-k", c.manifests)
	c.daemonsReady()
}

// daemonAway: while there is no daemon, nothing is written to, or read from,
// the bare directories; pods that run go on when it is back, and so does one
// that started meanwhile.
func daemonAway(c *cluster) {
	check := c.undisturbed()
	node := c.nodes[0]
	c.kubectl("-n", system, "delete", "daemonset", "lockfs")
	c.eventually("no daemon runs", func() bool {
		for _, n := range c.nodes {
			if c.daemonPID(n) != "" {
				return false
			}
		}
		return true
	})
	late := c.start("late", node, "until ls /data/view && echo late >>/data/view/late; do sleep 1; done")
	late.says("Permission denied")
	for _, n := range c.nodes {
		bare := c.on(n, "cd /var/lib/lockfs/shared && stat -c %a view && ls -A view && touch view/x 2>&1 || true")
		if mode, rest, _ := strings.Cut(bare, "\n"); mode != "0" || !strings.HasPrefix(rest, "touch:") || !strings.Contains(rest, "not permitted") {
			c.t.Errorf("the bare directory on %s: %q, want mode 0, empty and immutable", n, bare)
		}
	}
	for _, w := range c.writers() {
		c.eventually(w.name+" is refused", func() bool {
			return strings.Contains(c.kubectl("-n", example, "logs", w.name, "-c", "writer"), "Permission denied")
		})
	}
	c.kubectl("apply", "-k", c.manifests)
	c.daemonsReady()
	late.wait()
	c.turnsGoOn("after the daemons were away")
	check()
}
