package cluster

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// Counts by read, add and write, over one descriptor, as long as there is no file
// 'stop'. What was written is the counter's next line, and said once more.
const countScript = `
while ! [ -e /data/view/stop ]; do
	( exec 9<>/data/view/counter && n=$(tail -n 1 <&9) && m=$((${n:-0} + 1)) && echo $m >&9 && echo "counted $m" ) 2>/dev/null || sleep 0.2
done`

// TestMoveBetweenOverlays follows docs/how-to/move.md from the locks in Leases to etcd,
// back, and off the nodes. The other overlay is applied to programs that run: it is
// refused, and no number is counted twice.
func TestMoveBetweenOverlays(t *testing.T) {
	if os.Getenv(envExtent) != extentFull {
		t.Skipf("set %s=%s, or run make cluster-test", envExtent, extentFull)
	}
	c := newCluster(t, 2).serving(inLeases)
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
	})
	etcd := c.tutorial(inEtcd)
	c.sh(c.tutorial(inLeases))
	c.daemonsReady()
	c.sh(etcd[:strings.Index(etcd, "kubectl apply -k deploy/daemonset")])
	var programs []*program
	for _, node := range c.nodes {
		programs = append(programs, c.start("counter-"+node, node, countScript))
	}
	c.countsGoOn(programs, "in Leases")

	// The other overlay: one node after the other is refused.
	c.kubectl("apply", "-k", "deploy/daemonset/overlays/etcd")
	c.refused("shared", "kubernetes/", "etcd/")
	c.kubectl("-n", system, "delete", "pods", "-l", "app.kubernetes.io/name=lockfs")
	for _, v := range []string{"shared", "media"} {
		to := c.refused(v, "kubernetes/", "etcd/")
		t.Log(c.kubectl("-n", system, "exec", "daemonset/lockfs", "--", "lockfs", "move", "/srv/"+v,
			"--backend", "kubernetes", "--lease-namespace", system, "--to", to))
	}
	c.daemonsReady()
	c.countsGoOn(programs, "in etcd")

	c.on(c.nodes[0], "touch /srv/shared/stop")
	for _, p := range programs {
		p.wait()
	}
	c.counted(programs)

	c.kubectl("-n", system, "delete", "daemonset", "lockfs")
	c.cleanUp()
}

// refused waits until a daemon refuses a volume, which has its locks in another
// service, and returns the one that it would have used.
func (c *cluster) refused(volume, has, asks string) (service string) {
	c.t.Helper()
	message := regexp.MustCompile(`the volume of /srv/` + volume + ` has its locks in ` + has + `\S+, and this is (` + asks + `\S+): .*lockfs move --to (\S+) /srv/` + volume)
	c.eventually("the daemons refuse "+volume, func() bool {
		out, _ := c.try("-n", system, "logs", "-l", "app.kubernetes.io/name=lockfs", "--tail=-1") // no pod may have begun
		m := message.FindStringSubmatch(out)
		if m == nil {
			return false
		}
		service = m[1]
		return m[1] == m[2]
	})
	return service
}

// countsGoOn waits until each program has counted ten times more.
func (c *cluster) countsGoOn(programs []*program, when string) {
	c.t.Helper()
	counts := func(p *program) int { return strings.Count(p.log(), "counted") }
	before := make(map[*program]int)
	for _, p := range programs {
		before[p] = counts(p)
	}
	c.eventually("the programs count "+when, func() bool {
		for _, p := range programs {
			if counts(p) < before[p]+10 {
				return false
			}
		}
		return true
	})
}

// counted checks that every number which a program has counted is in the counter, at
// its place, and that no two have counted the same.
func (c *cluster) counted(programs []*program) {
	c.t.Helper()
	lines := strings.Split(strings.TrimSpace(c.shared(c.nodes[0], "counter")), "\n")
	for i, line := range lines {
		if line != fmt.Sprint(i+1) {
			c.t.Fatalf("line %d of the counter is %q", i+1, line)
		}
	}
	by := make(map[string]string)
	for _, p := range programs {
		for line := range strings.Lines(p.log()) {
			n := strings.TrimSpace(strings.TrimPrefix(line, "counted "))
			if by[n] != "" {
				c.t.Errorf("%s was counted by %s and by %s", n, by[n], p.name)
			}
			by[n] = p.name
		}
	}
	c.t.Logf("%d numbers, %d of them said to be counted", len(lines), len(by))
	if len(by) > len(lines) {
		c.t.Errorf("%d were counted, and the counter has %d", len(by), len(lines))
	}
}
