package fs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Sync says when bytes written under a lock must be on the volume.
//
// A network client accepts a write and sends it later. After the lease, another owner may have the
// file. All mounts of a local disk share one cache, so nothing comes late.
type Sync string

// The policies: when written bytes are on the volume.
const (
	SyncNever  Sync = "never"  // whenever the client sends them; only right for a local disk
	SyncClose  Sync = "close"  // at a close, and when the lock service does not answer
	SyncAlways Sync = "always" // before each write returns
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

// unreported returns that error once, after an fsync: a concurrent flush may have taken the report.
func (u *unflushed) unreported() error {
	u.flushing.Lock()
	defer u.flushing.Unlock()
	if err := u.failed.Swap(nil); err != nil {
		return *err
	}
	return nil
}

// openFiles are the handles of files. They make what is written by them reach the volume.
type openFiles struct {
	handles table[handle]
	sync    Sync
	log     *slog.Logger
}

// tracked runs a change of a handle's bytes. A later flush waits for it.
func (o *openFiles) tracked(h *handle, change func() error) error {
	if o.sync != SyncClose {
		return change()
	}
	h.unflushed.landing.RLock()
	defer h.unflushed.landing.RUnlock()
	h.unflushed.dirty.Store(true)
	return change()
}

func (o *openFiles) written(h *handle) error {
	if o.sync == SyncAlways || o.sync == SyncClose && h.troubled() {
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
		h.note()
	}
	return err
}

// flushers limits concurrent flushes. Each may block a thread while the volume does not answer.
const flushers = 16

// flushOnTrouble flushes all files after a failed renewal, before the session is suspended. Later
// writes are flushed one by one.
func (o *openFiles) flushOnTrouble(ctx context.Context, trouble <-chan struct{}) {
	for {
		select {
		case <-trouble:
		case <-ctx.Done():
			return
		}
		var wg sync.WaitGroup
		slots := make(chan struct{}, flushers)
		for _, h := range o.handles.all() {
			if !h.unflushed.dirty.Load() {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				o.flushOpen(h)
			})
		}
		wg.Wait()
	}
}

func (o *openFiles) flushOpen(h *handle) {
	if !h.enter() {
		<-h.gone // its close flushes
		return
	}
	defer h.leave()
	if err := h.flush(); err != nil {
		o.log.Warn("cannot flush an open file", slog.Any("error", err))
	}
}

// flushTable brings to the volume what was written under the locks of a table that was private.
func (o *openFiles) flushTable(t *lockmgr.AdvisoryTable) {
	if o.sync != SyncClose {
		return
	}
	handles := o.handles.all()
	files := make(map[*held]bool)
	for _, h := range handles {
		if h.node.advisory.Load() == t {
			files[h.node.held] = true
		}
	}
	for _, h := range handles {
		if files[h.node.held] && h.unflushed.dirty.Load() {
			o.flushOpen(h)
		}
	}
}

// flushFile brings to the volume what was written by any handle of h's file.
func (o *openFiles) flushFile(h *handle) error {
	if o.sync != SyncClose {
		return nil
	}
	err := h.flush()
	if h.node.handles.Load() == 1 {
		return err
	}
	for _, other := range o.handles.all() {
		if other != h && other.node.held == h.node.held && other.unflushed.dirty.Load() && other.enter() {
			err = errors.Join(err, other.flush())
			other.leave()
		}
	}
	return err
}
