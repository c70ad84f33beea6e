package cluster

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// handOver: daemons that are upgraded beside each other, as the how-to says, hand their views on.
// Programs that have files open the whole time get no error.
func handOver(c *cluster) {
	c.sh(c.documented("docs/how-to/upgrade.md", "hand over"))
	c.eventually("the DaemonSet is as the how-to wants it", func() bool { return c.ready(system, "lockfs") == len(c.nodes) })
	check := c.undisturbed()
	// $u is the time in hundredths of a second.
	const script = `exec 3>>/data/view/of-$HOSTNAME
echo opened
longest=0 n=0
until [ -e /data/view/upgraded ]; do
	read a b </proc/uptime; a=${a%.*}${a#*.}
	n=$((n + 1))
	echo "line $n" >&3 || { echo "append $n failed"; exit 1; }
	date >/data/view/made-$HOSTNAME || { echo "creation $n failed"; exit 1; }
	read u b </proc/uptime; u=${u%.*}${u#*.}
	[ $((u - a)) -le $longest ] || longest=$((u - a))
done
echo "longest $longest"
echo "lines $n"`
	var programs []*program
	for _, node := range c.nodes {
		for _, twin := range []string{"a", "b"} {
			p := c.start("upgrade-"+twin+"-"+node, node, script)
			p.says("opened")
			programs = append(programs, p)
		}
	}
	const upgrades = 3
	start := time.Now()
	for range upgrades {
		c.kubectl("-n", system, "rollout", "restart", "daemonset/lockfs")
		c.daemonsReady()
	}
	took := time.Since(start)
	c.start("upgraded", c.nodes[0], "touch /data/view/upgraded").wait()
	number := regexp.MustCompile(`(longest|lines) (\d+)`)
	for _, p := range programs {
		p.wait()
		said := make(map[string]int)
		for _, m := range number.FindAllStringSubmatch(p.log(), -1) {
			said[m[1]], _ = strconv.Atoi(m[2])
		}
		var want strings.Builder
		for i := range said["lines"] {
			fmt.Fprintf(&want, "line %d\n", i+1)
		}
		if got := c.shared(c.nodes[0], "of-"+p.name); got != want.String() {
			c.t.Errorf("%s wrote %d lines, and %d are there", p.name, said["lines"], strings.Count(got, "\n"))
		}
		c.t.Logf("%s: %d rounds in %d upgrades and %v, the longest %d0 ms", p.name, said["lines"], upgrades, took.Round(time.Second), said["longest"])
	}
	for _, node := range c.nodes {
		pod := c.podOn(system, "lockfs", node)
		if log := c.kubectl("-n", system, "logs", pod); !strings.Contains(log, "took the mount over") {
			c.t.Errorf("%s did not take its view over:\n%s", pod, log)
		}
	}
	c.turnsGoOn("after the upgrades")
	check()
}
