package cluster

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// victim is the node to lose: one without which etcd has its majority.
func (c *cluster) victim() string {
	c.t.Helper()
	if c.overlay != inEtcd {
		return c.nodes[0]
	}
	hosts := strings.Fields(c.kubectl("-n", "lockfs-etcd", "get", "pods", "-o", "jsonpath={.items[*].spec.nodeName}"))
	members := make(map[string]int)
	for _, n := range hosts {
		members[n]++
	}
	return slices.MinFunc(c.nodes, func(a, b string) int { return members[a] - members[b] })
}

// drainNode: pods leave a node, its daemon stays, and their locks are free at once.
func drainNode(c *cluster) {
	if len(c.nodes) < 2 {
		c.t.Skip("there is nowhere to go")
	}
	node := c.victim()
	c.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=100s")
	c.eventually("the writers are elsewhere", func() bool {
		writers := c.writers()
		return len(writers) == 2 && !slices.ContainsFunc(writers, func(w writer) bool { return w.node == node || w.node == "" })
	})
	c.turnsGoOn("after " + node + " was drained")
	if c.daemonPID(node) == "" {
		c.t.Errorf("the daemon has left %s too", node)
	}
	c.kubectl("uncordon", node)
	// The writers part again.
	c.kubectl("-n", example, "rollout", "restart", "deployment/writer-a")
	c.kubectl("-n", example, "rollout", "status", "deployment/writer-a", "--timeout=60s")
	c.turnsGoOn("on two nodes again")
}

// contest lets a pod on one node hold a file, and one on another wait for it.
// The holder writes until it cannot, and comes back; the waiter, once it has the
// file, writes until the file done is there.
type contest struct {
	c              *cluster
	file           string
	holder, waiter *program
}

func (c *cluster) contest(name, on, waits string) *contest {
	c.t.Helper()
	k := &contest{c: c, file: name}
	k.holder = c.start(name+"-holder", on, fmt.Sprintf(`exec 3>>/data/view/%[1]s && echo opened
n=0; while echo "holder $n" >&3; do n=$((n + 1)); sleep 0.1; done
exec 3>&-
until echo "holder again" >>/data/view/%[1]s; do sleep 0.5; done`, name))
	k.holder.says("opened")
	k.waiter = c.start(name+"-waiter", waits, fmt.Sprintf(`echo waits
until (exec 3>>/data/view/%[1]s; n=0; until [ -e /data/view/%[1]s.done ]; do echo "waiter $n" >&3 || exit 3; n=$((n + 1)); sleep 0.1; done); do
	[ $? != 3 ] || exit 3
done`, name))
	k.waiter.says("waits")
	c.turnsGoOn("while a file is held")
	if text := c.shared(waits, name); strings.Contains(text, "waiter") {
		c.t.Fatalf("both have the file: %q", text)
	}
	return k
}

// takenOver waits until the waiter has the file.
func (k *contest) takenOver(what string, since time.Time) {
	k.c.t.Helper()
	k.c.eventually("the waiter gets the file", func() bool { return strings.Contains(k.c.shared(k.waiter.node, k.file), "waiter 0\n") })
	k.c.t.Logf("%s: taken over after %v", what, time.Since(since).Round(100*time.Millisecond))
}

// finish lets the waiter end.
func (k *contest) finish() {
	k.c.t.Helper()
	k.c.on(k.waiter.node, "touch /srv/shared/"+k.file+".done")
	k.waiter.wait()
}

// check checks what the file holds: all that the holder wrote before it lost the
// file, then the waiter's lines, then rest.
func (k *contest) check(rest string) {
	k.c.t.Helper()
	text := k.c.shared(k.waiter.node, k.file)
	for _, name := range []string{"holder", "waiter"} {
		n := 0
		for {
			after, ok := strings.CutPrefix(text, fmt.Sprintf("%s %d\n", name, n))
			if !ok {
				break
			}
			text, n = after, n+1
		}
		if n == 0 {
			k.c.t.Errorf("nothing of the %s: %q", name, text)
		}
	}
	if text != rest {
		k.c.t.Errorf("after the waiter's lines: %q, want %q", text, rest)
	}
}

// cutNode: the programs of a node that is cut off get EIO, and their files keep
// what the survivors wrote. Their pods say what happened.
func cutNode(c *cluster) {
	if len(c.nodes) < 2 {
		c.t.Skip("nobody survives")
	}
	node := c.victim()
	k := c.contest("cut", node, c.other(node))
	cut := time.Now()
	c.lab.cut(c.t, node)
	k.takenOver("partition, "+c.overlay, cut)
	c.lab.heal(c.t, node)
	c.daemonsReady()
	c.eventually("the holder hears of its loss", func() bool {
		return strings.Contains(k.holder.log(), "Input/output error")
	})
	k.holder.hasEvent("LockLost")
	k.waiter.hasEvent("LockWaiting")
	k.finish()
	k.holder.wait()
	k.check("holder again\n")
	c.turnsGoOn("after the partition")
}

func (c *cluster) other(node string) string {
	return c.nodes[(slices.Index(c.nodes, node)+1)%len(c.nodes)]
}

// killNode: what a dead node had is taken over. It ends the cluster.
func killNode(c *cluster) {
	if len(c.nodes) < 2 {
		c.t.Skip("nobody survives")
	}
	node := c.victim()
	k := c.contest("dead", node, c.other(node))
	killed := time.Now()
	c.lab.kill(c.t, node)
	k.takenOver("node death, "+c.overlay, killed)
	k.finish()
	k.check("")
}
