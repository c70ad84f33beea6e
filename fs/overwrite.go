package fs

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// A direct write goes past the kernel's cache. The kernel drops the pages before it, and we drop them
// after it. In between a mapping can read a page, with old bytes, and store other bytes in it. Then
// the page is written back when it is dropped, and would undo the write.

// overwrites are the direct writes to a file that are under way, while it may be mapped.
type overwrites struct {
	// landing is held for reading while a page that is written back lands: none is on its way, without a
	// write that has begun, when that looks at the file.
	landing sync.RWMutex

	mu  sync.Mutex
	all []*overwrite // GUARDED_BY(mu)
}

// overwrite is one. off and data are constant.
type overwrite struct {
	off       int64
	old, data []byte // old: what the file had there; shorter if it ended there. GUARDED_BY(overwrites.mu)
}

// begin notes a direct write that its locks allow. fd may be for writing only. If the volume does not let
// us read, it returns nil, and a page can undo the write.
func (o *overwrites) begin(fd int, off int64, data []byte) *overwrite {
	file, err := reopen(fd, unix.O_RDONLY)
	if err != nil {
		return nil
	}
	defer unix.Close(file)
	w := &overwrite{off: off, old: make([]byte, len(data)), data: data}
	o.landing.Lock()
	defer o.landing.Unlock()
	n, err := ignoringEINTR(func() (int, error) { return unix.Pread(file, w.old, off) })
	w.old = w.old[:max(n, 0)]
	if err != nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, w)
	return w
}

// cut says how much was written: what was refused must not come into the file by a page.
func (o *overwrites) cut(w *overwrite, written int) {
	if w == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	w.old = w.old[:min(len(w.old), max(written, 0))]
}

func (o *overwrites) end(w *overwrite) {
	if w == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = slices.DeleteFunc(o.all, func(other *overwrite) bool { return other == w })
}

// merge puts the bytes of the direct writes under way into a page that is written back at off, where
// its mapping has stored nothing else.
func (o *overwrites) merge(page []byte, off int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.all {
		from, to := max(off, w.off), min(off+int64(len(page)), w.off+int64(len(w.old)))
		for at := from; at < to; at++ {
			if page[at-off] == w.old[at-w.off] {
				page[at-off] = w.data[at-w.off]
			}
		}
	}
}
