package etcdlock

import (
	"slices"
	"sync"
)

// claims are the entries of a session that an acquisition, or a lock, answers for: from
// before the Put is sent until the entry is known to be gone, or is given up. An entry that
// is in etcd and not claimed is an orphan: its key was made for one acquisition, which is
// over.
type claims struct {
	mu      sync.Mutex
	checks  int               // GUARDED_BY(mu); how many checks have begun
	entries map[string]*claim // GUARDED_BY(mu)
	dirs    []string          // GUARDED_BY(mu); those of entries that are delegations, sorted; never changed, but replaced
}

// claim knows the last look that saw its entry; at first, the last that began
// before the claim was made.
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

// addDelegation adds the entry of a delegation.
func (c *claims) addDelegation(entry string) {
	c.add(entry)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirs = append(slices.Clone(c.dirs), entry)
	slices.Sort(c.dirs)
}

// delegations returns the entries of the session's delegations, sorted. They are in no way of
// the session's requests.
func (c *claims) delegations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dirs
}

// beginCheck begins a check of what is in etcd. Only one is under way at a time.
func (c *claims) beginCheck() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks++
}

// saw notes that the look saw an entry, and reports whether it is claimed.
func (c *claims) saw(entry []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.entries[string(entry)]
	if claim != nil {
		claim.seen = c.checks
	}
	return claim != nil
}

// seen reports whether the look saw an entry that is claimed still, or that was
// claimed after the look began.
func (c *claims) seen(entry []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.entries[string(entry)]
	return claim != nil && claim.seen == c.checks
}
