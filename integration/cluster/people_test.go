package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// tellPeople: holders and waiters have the names that kubectl gives them, in 'lockfs ls' and in
// events on both pods. So has the holder of a lock that an operator breaks. The metrics count all
// of it.
func tellPeople(c *cluster) {
	holder := c.start("holder", c.nodes[0], "exec 3>>/data/view/named && echo opened\nwhile :; do sleep 1; done")
	holder.says("opened")
	// What is done meanwhile can take longer than an open waits.
	waiter := c.start("waiter", c.nodes[len(c.nodes)-1], "until (exec 3>>/data/view/named); do :; done")
	c.event(holder, "LockWaitedFor", ours+"/waiter")
	c.event(waiter, "LockWaiting", ours+"/holder")

	want := []lockEntry{
		{State: "held", Node: c.nodes[0], PodName: ours + "/holder", Container: "program"},
		{State: "waiting", Node: c.nodes[len(c.nodes)-1], PodName: ours + "/waiter", Container: "program"},
	}
	var entries []lockEntry
	c.eventually("the waiter is not between two waits", func() bool {
		entries = c.locksOf(c.nodes[0], "/var/lib/lockfs/shared/view/named")
		return len(entries) > 1
	})
	if !slices.Equal(entries, want) {
		c.t.Errorf("lockfs ls: %+v, want %+v", entries, want)
	}

	c.lockfs(c.nodes[0], "break", "--reason", "test of people", "/var/lib/lockfs/shared/view/named")
	waiter.wait()
	c.event(holder, "LockBroken", "test of people")
	metrics := c.kubectl("get", "--raw", fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:9808/proxy/metrics", system, c.podOn(system, "lockfs", c.nodes[0])))
	for _, want := range []string{
		`lockfs_volume_mounted{name="shared",namespace="default"} 1`,
		`lockfs_lock_losses_total{cause="broken",name="shared",namespace="default"} 1`,
	} {
		if !strings.Contains(metrics, want+"\n") {
			c.t.Errorf("not among the metrics: %s", want)
		}
	}
}

// event waits for an event on a program's pod that says something.
func (c *cluster) event(p *program, reason, says string) {
	c.t.Helper()
	c.eventually(fmt.Sprintf("%s has an event %s: %s", p.name, reason, says), func() bool {
		messages := c.kubectl("-n", ours, "get", "events", "--field-selector", "involvedObject.name="+p.name+",reason="+reason,
			"-o", "jsonpath={.items[*].message}")
		return strings.Contains(messages, says)
	})
}

// lockEntry is a line of 'lockfs ls -o json'.
type lockEntry struct {
	State     string `json:"state"`
	Node      string `json:"node"`
	PodName   string `json:"pod_name"`
	Container string `json:"container"`
}

func (c *cluster) locksOf(node, path string) (entries []lockEntry) {
	c.t.Helper()
	out := c.lockfs(node, "ls", "-o", "json", path)
	if err := json.Unmarshal([]byte(out), &entries); err != nil {
		c.t.Fatalf("lockfs ls: %v: %s", err, out)
	}
	return entries
}

// lockfs runs a command in the daemon's pod on a node.
func (c *cluster) lockfs(node, command string, args ...string) string {
	c.t.Helper()
	return c.kubectl(append([]string{"-n", system, "exec", c.podOn(system, "lockfs", node), "--", "/usr/local/bin/lockfs", command}, args...)...)
}
