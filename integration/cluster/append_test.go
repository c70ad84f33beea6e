package cluster

import (
	"fmt"
	"strings"
)

// appendAndCount: of two pods on each node, nobody loses a line, or a count that
// he has read, added to and written.
func appendAndCount(c *cluster) {
	const rounds = 20
	script := fmt.Sprintf(`set -e
for i in $(seq %d); do
	(exec 9>>/data/view/counter; n=$(cat /data/view/counter); echo $((${n:-0} + 1)) >/data/view/counter)
	echo "$HOSTNAME $i" >>/data/view/lines
done`, rounds)
	var programs []*program
	for _, node := range c.nodes {
		for _, twin := range []string{"a", "b"} {
			programs = append(programs, c.start("count-"+twin+"-"+node, node, script))
		}
	}
	for _, p := range programs {
		p.wait()
	}
	want := len(programs) * rounds
	if got := c.shared(c.nodes[0], "counter"); got != fmt.Sprintln(want) {
		c.t.Errorf("counted to %q, want %d", got, want)
	}
	lines := make(map[string]bool)
	for line := range strings.Lines(c.shared(c.nodes[0], "lines")) {
		lines[line] = true
	}
	for _, p := range programs {
		for i := range rounds {
			if line := fmt.Sprintf("%s %d\n", p.name, i+1); !lines[line] {
				c.t.Errorf("lost: %s", line)
			}
		}
	}
	if len(lines) != want {
		c.t.Errorf("%d lines, want %d", len(lines), want)
	}
}
