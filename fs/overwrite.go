package fs

import (
	"slices"
	"sync"
	"sync/atomic"

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

	count atomic.Int64 // len(all)

	mu  sync.Mutex
	all []*overwrite // GUARDED_BY(mu)
}

// overwrite is one. off and data are constant.
type overwrite struct {
	off  int64
	data []byte
	// old is what the file had there, or data where a mapping has read that; shorter if the file ended
	// there. GUARDED_BY(overwrites.mu)
	old []byte
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
	o.count.Store(int64(len(o.all)))
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
	o.count.Store(int64(len(o.all)))
}

// filled says what a page is filled with. Where that is what a write under way has written, the mapping
// stores after the write: it may put the old byte back.
func (o *overwrites) filled(page []byte, off int64) {
	if o.count.Load() == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.all {
		from, to := w.in(page, off)
		for at := from; at < to; at++ {
			if page[at-off] == w.data[at-w.off] {
				w.old[at-w.off] = w.data[at-w.off]
			}
		}
	}
}

// in returns where a page at off can have old bytes. It needs overwrites.mu.
func (w *overwrite) in(page []byte, off int64) (from, to int64) {
	return max(off, w.off), min(off+int64(len(page)), w.off+int64(len(w.old)))
}

// merge puts the bytes of the direct writes under way into a page that is written back at off, where
// its mapping has stored nothing else.
func (o *overwrites) merge(page []byte, off int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.all {
		from, to := w.in(page, off)
		for at := from; at < to; at++ {
			if page[at-off] == w.old[at-w.off] {
				page[at-off] = w.data[at-w.off]
			}
		}
	}
}
