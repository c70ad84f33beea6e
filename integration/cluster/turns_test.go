package cluster

import (
	"fmt"
	"strings"
)

// writer is a pod of the example's Deployments.
type writer struct {
	name, uid, node string
	restarts        int
}

func (c *cluster) writers() []writer {
	c.t.Helper()
	var list struct {
		Items []struct {
			Metadata struct {
				Name, UID         string
				DeletionTimestamp string
			}
			Spec   struct{ NodeName string }
			Status status
		}
	}
	c.get(&list, "-n", example, "pods")
	var all []writer
	for _, item := range list.Items {
		if item.Metadata.DeletionTimestamp != "" {
			continue
		}
		w := writer{name: item.Metadata.Name, uid: item.Metadata.UID, node: item.Spec.NodeName}
		for _, s := range item.Status.ContainerStatuses {
			w.restarts += s.RestartCount
		}
		all = append(all, w)
	}
	return all
}

// turns checks the file that the writers append to, and returns how many turns
// each has finished. A turn is three lines "NAME TURN PART"; one that a fault
// has cut short is made again.
func (c *cluster) turns() map[string]int {
	c.t.Helper()
	finished, err := parseTurns(c.shared(c.nodes[0], "log"))
	if err != nil {
		c.t.Fatal(err)
	}
	return finished
}

func parseTurns(log string) (map[string]int, error) {
	finished := make(map[string]int)
	var last struct {
		name       string
		turn, part int
	}
	for i, line := range strings.SplitAfter(log, "\n") {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		at := last
		if _, err := fmt.Sscanf(line, "%s %d %d\n", &at.name, &at.turn, &at.part); err != nil {
			return nil, fmt.Errorf("line %d is %q: %w", i+1, line, err)
		}
		if at.part != 1 && (at.name != last.name || at.turn != last.turn || at.part != last.part+1) {
			return nil, fmt.Errorf("line %d, %q, follows one of %s: two wrote at once", i+1, line, last.name)
		}
		switch {
		case at.turn > finished[at.name]+1:
			return nil, fmt.Errorf("line %d, %q: turn %d was lost", i+1, line, at.turn-1)
		case at.part == 3:
			finished[at.name] = at.turn
		}
		last = at
	}
	return finished, nil
}

// turnsGoOn waits until every writer has finished three more turns.
func (c *cluster) turnsGoOn(when string) {
	c.t.Helper()
	before, writers := c.turns(), c.writers()
	c.eventually("the writers take turns "+when, func() bool {
		now := c.turns()
		for _, w := range writers {
			if now[w.name] < before[w.name]+3 {
				return false
			}
		}
		return true
	})
}

// undisturbed remembers the writers, and checks that they are still the same
// processes.
func (c *cluster) undisturbed() (check func()) {
	c.t.Helper()
	before := fmt.Sprint(c.writers())
	return func() {
		c.t.Helper()
		if now := fmt.Sprint(c.writers()); now != before {
			c.t.Errorf("the writers were %v, and are %v", before, now)
		}
	}
}
