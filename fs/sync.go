package fs

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Sync says when bytes written under a lock must be on the volume.
//
// A network client accepts a write and sends it later. After the lease, another owner may have the
// file. All mounts of a local disk share one cache, so nothing comes late.
type Sync string

// The policies, and what each leaves to the volume's client.
const (
	SyncNever  Sync = "never"  // all; only right for a local disk
	SyncClose  Sync = "close"  // until a close, or an unanswering lock service
	SyncAlways Sync = "always" // nothing: each write is on the volume before it returns
)

// unflushed is what a handle has written and not flushed.
type unflushed struct {
	landing  sync.RWMutex // read-locked by writes under way
	dirty    atomic.Bool  // there may be something to flush
	flushing sync.Mutex   // held during a flush
	// failed is a flush's error for the next fsync: the kernel reports an error once.
	failed atomic.Pointer[error]
}

// owed returns the error that the next fsync must return.
func (u *unflushed) owed() error {
	if err := u.failed.Load(); err != nil {
		return *err
	}
	return nil
}

// settle returns that error once, after an fsync: a concurrent flush may have taken the report.
func (u *unflushed) settle() error {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	if err := u.failed.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// tracked runs a change of a handle's bytes. A later flush waits for it.
func (f *FS) tracked(h *handle, change func() error) error {
	if f.sync != SyncClose {
		return change()
	}
	h.unflushed.landing.RLock()
	defer h.unflushed.landing.RUnlock()
	h.unflushed.dirty.Store(true)
	return change()
}

func (f *FS) written(h *handle) error {
	if f.sync == SyncAlways || f.sync == SyncClose && h.troubled() {
		return h.fdatasync()
	}
	return nil
}

// flush sends all writes that began before the call, whatever others write meanwhile.
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

// fdatasync keeps an error for the next fsync: this request's program may not be the writer.
func (h *handle) fdatasync() error {
	err := byDescriptor(unix.Fdatasync(h.fd))
	if err != nil {
		h.unflushed.failed.Store(&err)
	}
	return err
}

// flushers limits concurrent flushes. Each may block a thread while the volume does not answer.
const flushers = 16

// flushOnTrouble flushes all files after a failed renewal, before the session is suspended. Later
// writes are flushed one by one.
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
		<-h.gone // its close flushes
		return
	}
	defer h.leave()
	if err := h.flush(); err != nil {
		f.log.Warn("cannot flush an open file", slog.Any("error", err))
	}
}
