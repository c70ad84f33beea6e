package cluster

import (
	"fmt"
	"strings"
	"time"
)

// killWorkers: a daemon with --supervise that is killed is started again in its container. Programs that
// have files open the whole time get no error.
func killWorkers(c *cluster) {
	c.sh(c.documented("docs/OPERATIONS.md", "supervise"))
	c.eventually("a worker serves on each node", func() bool {
		for _, node := range c.nodes {
			if c.workerPID(node) == "" {
				return false
			}
		}
		return c.ready(system, "lockfs") == len(c.nodes)
	})
	check := c.undisturbed()
	l := c.beginLoad("death")
	const deaths = 5
	for range deaths {
		for _, node := range c.nodes {
			time.Sleep(3 * time.Second) // a death within 2 s of a start is another matter
			pid := c.workerPID(node)
			c.on(node, "kill -9 "+pid)
			c.eventually("another worker serves", func() bool { now := c.workerPID(node); return now != "" && now != pid })
		}
		c.turnsGoOn("after deaths")
	}
	l.end(fmt.Sprintf("%d deaths on each node", deaths))
	for _, node := range c.nodes {
		pod := c.podOn(system, "lockfs", node)
		if log := c.kubectl("-n", system, "logs", pod); strings.Count(log, "took the mount over") < deaths {
			c.t.Errorf("%s has not taken its views over %d times:\n%s", pod, deaths, log)
		}
	}
	check()
	c.kubectl("-n", system, "set", "env", "daemonset/lockfs", "LOCKFS_SUPERVISE-")
	c.kubectl("-n", system, "rollout", "status", "daemonset/lockfs")
	c.daemonsReady()
}

// workerPID returns the pid of a node's supervised worker; "": there is none now.
func (c *cluster) workerPID(node string) string {
	c.t.Helper()
	out, _ := c.tryOn(node, `for p in $(pidof lockfs); do
	parent=$(awk '/^PPid:/ { print $2 }' /proc/$p/status)
	[ "$(cat /proc/$p/comm /proc/$parent/comm)" != "$(printf 'lockfs\nlockfs')" ] || echo $p
done`)
	return strings.TrimSpace(out)
}
