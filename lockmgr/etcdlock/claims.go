package etcdlock

import (
	"slices"
	"sync"
)

// claims are the entries of a session that an acquisition or a lock answers for, from before the
// Put is sent until the entry is known to be gone or is given up. An unclaimed entry in etcd is an
// orphan: its acquisition is over, and its key is used once.
type claims struct {
	mu      sync.Mutex
	checks  int               // GUARDED_BY(mu); how many checks have begun
	entries map[string]*claim // GUARDED_BY(mu)
	dirs    []string          // GUARDED_BY(mu); the entries of delegations, sorted; replaced, never changed
}

// claim has the number of the last check that saw its entry, or that began before the claim.
type claim struct{ seen int }

func (c *claims) add(entries ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = make(map[string]*claim)
	}
	for _, e := range entries {
		c.entries[e] = &claim{seen: c.checks}
	}
}

func (c *claims) drop(entries ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range entries {
		delete(c.entries, e)
		if i, ok := slices.BinarySearch(c.dirs, e); ok {
			c.dirs = slices.Delete(slices.Clone(c.dirs), i, i+1)
		}
	}
}

func (c *claims) addDelegation(entry string) {
	c.add(entry)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirs = append(slices.Clone(c.dirs), entry)
	slices.Sort(c.dirs)
}

// delegations returns the sorted entries of delegations: they do not block the session's requests.
func (c *claims) delegations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dirs
}

// beginCheck begins a check. Only one is under way at a time.
func (c *claims) beginCheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
}

// saw notes that the check saw an entry, and reports whether the entry is claimed.
func (c *claims) saw(entry []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.entries[string(entry)]
	if claim != nil {
		claim.seen = c.checks
	}
	return claim != nil
}

// has reports whether an entry is claimed.
func (c *claims) has(entry []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.entries[string(entry)] != nil
}

// seen reports whether the check saw a claimed entry, or the claim is newer than the check.
func (c *claims) seen(entry []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.entries[string(entry)]
	return claim != nil && claim.seen == c.checks
}
