package fs

import (
	"sync"

	"golang.org/x/sys/unix"
)

// A direct write goes past the kernel's cache. The kernel drops the pages before it, and we drop them
// after it. In between a mapping can read a page, with old bytes, and store other bytes in it. Then
// the page is written back when it is dropped, and would undo the write.

// overwrites are the direct writes to a file that are under way, while it may be mapped.
type overwrites struct {
	mu  sync.Mutex
	all []*overwrite // GUARDED_BY(mu)
}

// overwrite is one. All is constant.
type overwrite struct {
	off       int64
	old, data []byte // old: what the file had there; shorter if it ended there
}

// begin notes a direct write. fd may be for writing only. If the volume does not let us read, end does
// nothing, and a page can undo the write.
func (o *overwrites) begin(fd int, off int64, data []byte) (end func()) {
	file, err := reopen(fd, unix.O_RDONLY)
	if err != nil {
		return func() {}
	}
	defer unix.Close(file)
	w := &overwrite{off: off, old: make([]byte, len(data)), data: data}
	n, err := ignoringEINTR(func() (int, error) { return unix.Pread(file, w.old, off) })
	w.old = w.old[:max(n, 0)]
	if err != nil {
		return func() {}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, w)
	return func() { o.end(w) }
}

func (o *overwrites) end(w *overwrite) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, other := range o.all {
		if other == w {
			o.all = append(o.all[:i], o.all[i+1:]...)
			return
		}
	}
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
