package cluster

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// load are two pods on each node, which append to a file that is open all the while, and make others.
type load struct {
	c        *cluster
	name     string
	programs []*program
}

// beginLoad returns when all pods work.
func (c *cluster) beginLoad(name string) *load {
	// $u is the time in hundredths of a second.
	script := fmt.Sprintf(`exec 3>>/data/view/of-$HOSTNAME
echo opened
longest=0 n=0
until [ -e /data/view/%[1]s-over ]; do
	read a b </proc/uptime; a=${a%%.*}${a#*.}
	n=$((n + 1))
	echo "line $n" >&3 || { echo "append $n failed"; exit 1; }
	date >/data/view/made-$HOSTNAME || { echo "creation $n failed"; exit 1; }
	read u b </proc/uptime; u=${u%%.*}${u#*.}
	[ $((u - a)) -le $longest ] || longest=$((u - a))
done
echo "longest $longest"
echo "lines $n"`, name)
	l := &load{c: c, name: name}
	for _, node := range c.nodes {
		for _, twin := range []string{"a", "b"} {
			p := c.start(name+"-"+twin+"-"+node, node, script)
			p.says("opened")
			l.programs = append(l.programs, p)
		}
	}
	return l
}

// end ends the pods, and checks that none has seen an error and each line is there once.
func (l *load) end(after string) {
	c := l.c
	c.t.Helper()
	c.start(l.name+"-over", c.nodes[0], "touch /data/view/"+l.name+"-over").wait()
	number := regexp.MustCompile(`(longest|lines) (\d+)`)
	for _, p := range l.programs {
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
		c.t.Logf("%s: %d rounds in %s, the longest %d0 ms", p.name, said["lines"], after, said["longest"])
	}
}
