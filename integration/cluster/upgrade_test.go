package cluster

import (
	"fmt"
	"strings"
	"time"
)

// handOver: daemons that are upgraded hand their views on. Programs that have files open the whole time
// get no error.
func handOver(c *cluster) {
	check := c.undisturbed()
	l := c.beginLoad("upgrade")
	const upgrades = 3
	start := time.Now()
	for range upgrades {
		c.kubectl("-n", system, "rollout", "restart", "daemonset/lockfs")
		c.daemonsReady()
	}
	took := time.Since(start)
	l.end(fmt.Sprintf("%d upgrades and %v", upgrades, took.Round(time.Second)))
	for _, node := range c.nodes {
		pod := c.podOn(system, "lockfs", node)
		if log := c.kubectl("-n", system, "logs", pod); !strings.Contains(log, "took the mount over") {
			c.t.Errorf("%s did not take its view over:\n%s", pod, log)
		}
	}
	c.turnsGoOn("after the upgrades")
	check()
}
