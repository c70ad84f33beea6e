package cluster

import (
	"fmt"
	"strings"
	"time"
)

// killWorkers: a daemon that is killed is started again in its container. Programs that have files open
// the whole time get no error.
func killWorkers(c *cluster) {
	const deaths = 5
	c.deaths("kill", deaths, func(node, worker string) { c.on(node, "kill -9 "+worker) })
}

// exhaustMemory: the same when the kernel kills it for its memory.
func exhaustMemory(c *cluster) {
	c.deaths("memory", 1, func(node, worker string) {
		// The limit follows what is used, until the worker asks for more. The kernel ends the largest of the three
		// processes; a container of cgroup v2 ends with one of its processes, unless the kubelet is told otherwise.
		said := c.on(node, `cg=/proc/1/root/sys/fs/cgroup/memory$(awk -F: '$2 == "memory" { print $3 }' /proc/`+worker+`/cgroup)
was=$(cat $cg/memory.limit_in_bytes)
while kill -0 `+worker+`; do echo $(cat $cg/memory.usage_in_bytes) >$cg/memory.limit_in_bytes; sleep 0.05; done 2>/dev/null
echo $was >$cg/memory.limit_in_bytes
grep oom_kill $cg/memory.oom_control`)
		if strings.HasSuffix(strings.TrimSpace(said), "oom_kill 0") {
			c.t.Errorf("the worker on %s did not die of its memory: %s", node, said)
		}
	})
}

// deaths ends the worker of each node that many times, under programs.
func (c *cluster) deaths(name string, times int, kill func(node, worker string)) {
	restarts := func() string {
		return c.kubectl("-n", system, "get", "pods", "-l", "app.kubernetes.io/name=lockfs", "-o", `jsonpath={range .items[*]}{.metadata.name} {.status.containerStatuses[*].restartCount}{"\n"}{end}`)
	}
	c.eventually("a worker serves on each node", func() bool {
		for _, node := range c.nodes {
			if c.workerPID(node) == "" {
				return false
			}
		}
		return c.ready(system, "lockfs") == len(c.nodes)
	})
	before := restarts()
	check := c.undisturbed()
	l := c.beginLoad(name)
	for range times {
		for _, node := range c.nodes {
			time.Sleep(3 * time.Second) // a death within 2 s of a start is another matter
			pid := c.workerPID(node)
			kill(node, pid)
			c.eventually("another worker serves", func() bool { now := c.workerPID(node); return now != "" && now != pid })
		}
		c.turnsGoOn("after deaths")
	}
	l.end(fmt.Sprintf("%d deaths on each node", times))
	for _, node := range c.nodes {
		pod := c.podOn(system, "lockfs", node)
		if log := c.kubectl("-n", system, "logs", pod); strings.Count(log, "took the mount over") < times {
			c.t.Errorf("%s has not taken its views over %d times:\n%s", pod, times, log)
		}
	}
	check()
	if now := restarts(); now != before {
		c.t.Errorf("the daemons' pods, with restarts, were\n%sand are\n%s", before, now)
	}
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
