package lockmgr

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Waits returns up to n waiting requests, the longest first.
func (m *Manager) Waits(n int) []RequestWaits {
	var all []RequestWaits
	for _, v := range m.waits.list() {
		if w, ok := v.wait(); ok {
			all = append(all, w)
		}
	}
	slices.SortFunc(all, func(a, b RequestWaits) int { return cmp.Compare(b.Waited, a.Waited) })
	return all[:min(n, len(all))]
}

// wait returns how long the request has waited, if it waits.
func (v *tracker) wait() (RequestWaits, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.since.IsZero() {
		return RequestWaits{}, false
	}
	return RequestWaits{Key: v.req.Keys[0], Holder: v.holder(), Waited: time.Since(v.since)}, true
}

type waits struct {
	mu  sync.Mutex            // LOCK ORDERING: last
	all map[*tracker]struct{} // GUARDED_BY(mu)
}

func (w *waits) add(v *tracker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[*tracker]struct{})
	}
	w.all[v] = struct{}{}
}

func (w *waits) remove(v *tracker) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, v)
}

func (w *waits) len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.all)
}

func (w *waits) list() []*tracker {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []*tracker
	for v := range w.all {
		all = append(all, v)
	}
	return all
}
