package lab

import (
	"time"
)

func (c *Cluster) Outages() map[string]func(func(string)) {
	return map[string]func(func(string)){
		"leader killed": func(goesOn func(string)) {
			leader, _ := c.Leader()
			leader.Kill()
			goesOn("without the old leader")
			leader.Start()
			c.Healthy()
		},
		"leader moved": func(goesOn func(string)) {
			for range 3 {
				c.moveLeader()
				goesOn("with another leader")
			}
		},
		"leader paused": func(goesOn func(string)) {
			leader, _ := c.Leader()
			leader.freeze()
			defer leader.thaw()
			goesOn("without the leader")
		},
		"follower paused": func(goesOn func(string)) {
			_, followers := c.Leader()
			followers[0].freeze()
			defer followers[0].thaw()
			goesOn("without one follower")
		},
		"all restarted": func(goesOn func(string)) {
			for _, m := range c.Members {
				m.Kill()
			}
			Between(100*time.Millisecond, 500*time.Millisecond)
			for _, m := range c.Members {
				m.Start()
			}
			c.Healthy()
		},
		"compacted and defragmented": func(goesOn func(string)) {
			for range 3 {
				c.Compact()
				c.Defragment()
			}
		},
	}
}

// Stop kills two of the three members: there is no majority.
func (c *Cluster) Stop() (back func()) {
	c.T.Helper()
	leader, followers := c.Leader()
	leader.Kill()
	followers[0].Kill()
	return func() {
		c.T.Helper()
		leader.Start()
		followers[0].Start()
		c.Healthy()
	}
}
