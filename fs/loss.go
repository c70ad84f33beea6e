package fs

import (
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

// bereave flushes what was written before the loss, and drops the kernel's cache.
func (f *FS) bereave(h *handle) {
	if h.hold != nil {
		h.hold.Landed() // first: a change that hangs keeps no other handle from being told
	}
	f.gates.bereaved <- struct{}{}
	defer func() { <-f.gates.bereaved }()
	if f.sync == SyncClose {
		f.flushOpen(h)
	}
	f.dropPages(h.node)
}

// advisoryLost follows the loss of all locks of a table.
func (f *FS) advisoryLost(t *lockmgr.AdvisoryTable) {
	var bereft []*handle
	for _, h := range f.handles.all() {
		if h.node.advisory.Load() == t {
			h.node.bereft.Store(true) // first, see reply
		}
	}
	for _, h := range f.handles.all() {
		if h.node.advisory.Load() == t && h.enter() {
			h.lost.Store(true)
			h.note()
			h.endWaits()
			bereft = append(bereft, h)
		}
	}
	for i, h := range bereft {
		if h.hold != nil {
			h.hold.Landed()
		}
		if first := slices.IndexFunc(bereft, func(o *handle) bool { return o.node == h.node }); first == i {
			f.bereave(h)
		}
		h.leave()
	}
}
