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
// A network volume's client accepts a write and sends it later. If it sends it after the lease
// has ended, another owner may have the file. All mounts of a local disk share one cache, so
// that nothing comes late.
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
	dirty    atomic.Bool  // there may be something to flush
	flushing sync.Mutex   // held during a flush
	// failed is the error of a flush that no fsync has returned yet. The kernel reports an
	// error once for each open file, and has reported it to the flush.
	failed atomic.Pointer[error]
}

// owed returns the error that the next fsync has to return.
func (u *unflushed) owed() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// settle returns that error once, after an fsync has synced: a flush at the same time may have
// taken the report.
func (u *unflushed) settle() error {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	if err := u.failed.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// tracked runs a change of a handle's bytes. A flush that begins later waits for it.
func (f *FS) tracked(h *handle, change func() error) error {
	if f.sync != SyncClose {
		return change()
	}
	h.unflushed.landing.RLock()
	defer h.unflushed.landing.RUnlock()
	h.unflushed.dirty.Store(true)
	return change()
}

// written flushes a write if it must not wait.
func (f *FS) written(h *handle) error {
	if f.sync == SyncAlways || f.sync == SyncClose && h.troubled() {
		return h.fdatasync()
	}
	return nil
}

// flush sends to the volume what was written. When it returns, nothing is left of writes that
// began before the call, though others write and flush at the same time.
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

// fdatasync keeps an error for the next fsync: the program whose request this is may not be
// the one that wrote, or may have ended.
func (h *handle) fdatasync() error {
	err := byDescriptor(unix.Fdatasync(h.fd))
	if err != nil {
		h.unflushed.failed.Store(&err)
	}
	return err
}

// flushers is the maximum number of files that are flushed at once. Each may block a thread for
// as long as the volume does not answer.
const flushers = 16

// flushOnTrouble flushes all files when a renewal of the session has failed, so that nothing is
// left in the client's cache when the session is suspended. Writes under a troubled session
// are flushed one by one.
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
