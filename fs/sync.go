package fs

import (
	"context"
	"log/slog"
	"sync"

	"golang.org/x/sys/unix"
)

// Sync says when bytes that were written under a lock have to be on the volume.
//
// A network volume's client accepts a write and delivers it when it likes. What
// it delivers after the lease has ended, somebody else's file gets. A local
// disk has one cache for all its mounts, and nothing can be late.
type Sync string

// The policies, and what each leaves to the volume's client.
const (
	SyncNever  Sync = "never"  // everything: right for a local disk only
	SyncClose  Sync = "close"  // until the file is closed, or the lock service does not answer
	SyncAlways Sync = "always" // nothing: each write is on the volume before it returns
)

// writing notes that the handle is about to have unwritten bytes: before the
// write, so that whoever flushes the view meanwhile finds it.
func (f *FS) writing(h *handle) {
	if f.sync == SyncClose {
		h.dirty.Store(true)
	}
}

// written brings a write to the volume if that is not to wait.
func (f *FS) written(h *handle) error {
	if f.sync == SyncAlways || f.sync == SyncClose && h.hold.Troubled() {
		return unix.Fdatasync(h.fd)
	}
	return nil
}

// flush brings what was written to the volume, if there may be anything.
func (h *handle) flush() error {
	if !h.dirty.Swap(false) {
		return nil
	}
	return unix.Fdatasync(h.fd)
}

// flushers bounds how many files are flushed at once: each may block a thread
// for as long as the volume does not answer.
const flushers = 16

// flushOnTrouble flushes all files when a renewal of the session has failed: by
// the time it is suspended nothing is to be left in the client's cache. Until
// then, writes that find the session troubled flush their file themselves.
func (f *FS) flushOnTrouble(ctx context.Context) {
	for {
		select {
		case <-f.locks.Trouble():
		case <-ctx.Done():
			return
		}
		var wg sync.WaitGroup
		slots := make(chan struct{}, flushers)
		for _, h := range f.handles.all() {
			if !h.dirty.Load() {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				f.flushOpen(h)
			})
		}
		wg.Wait()
	}
}

func (f *FS) flushOpen(h *handle) {
	if !h.enter() {
		<-h.gone // flushed by its close
		return
	}
	defer h.leave()
	if err := h.flush(); err != nil {
		// The program is told by its next fsync or close, as the
		// kernel keeps the error for each open file.
		f.log.Warn("cannot flush an open file", slog.Any("error", err))
	}
}
