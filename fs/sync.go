package fs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

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

// unflushed is what a handle has written and not flushed.
type unflushed struct {
	landing  sync.RWMutex // read-locked by writes under way
	dirty    atomic.Bool  // something may be to be flushed
	flushing sync.Mutex   // held by a flush until it has ended
	// failed is the error of a flush that no fsync has returned yet. The volume's
	// kernel tells an open file of an error once, and has told the flush.
	failed atomic.Pointer[error]
}

// owed returns the error that the next fsync has to return.
func (u *unflushed) owed() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// settle returns it once, when an fsync has synced: a flush at the same time may
// have been told in its place.
func (u *unflushed) settle() error {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	if err := u.failed.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// tracked runs a change of a handle's bytes: from its begin on a flush finds it, and
// waits for it.
func (f *FS) tracked(h *handle, change func() error) error {
	if f.sync != SyncClose {
		return change()
	}
	h.unflushed.landing.RLock()
	defer h.unflushed.landing.RUnlock()
	h.unflushed.dirty.Store(true)
	return change()
}

// written brings a write to the volume if that is not to wait.
func (f *FS) written(h *handle) error {
	if f.sync == SyncAlways || f.sync == SyncClose && h.hold.Troubled() {
		return h.fdatasync()
	}
	return nil
}

// flush brings what was written to the volume, if there may be anything. When it
// returns nothing is left that was begun before it was called: others flush the
// handle at the same time, and others write.
func (h *handle) flush() error {
	u := &h.unflushed
	u.flushing.Lock()
	defer u.flushing.Unlock()
	u.landing.Lock()
	dirty := u.dirty.Swap(false)
	u.landing.Unlock()
	if !dirty {
		return nil
	}
	return h.fdatasync()
}

// fdatasync notes an error for the next fsync: whose call this is may be another
// program than the one that wrote, and a program that has ended.
func (h *handle) fdatasync() error {
	err := byDescriptor(unix.Fdatasync(h.fd))
	if err != nil {
		h.unflushed.failed.Store(&err)
	}
	return err
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
			if !h.unflushed.dirty.Load() {
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
		f.log.Warn("cannot flush an open file", slog.Any("error", err))
	}
}
