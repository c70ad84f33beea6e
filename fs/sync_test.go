package fs

import (
	"log/slog"
	"os"
	"runtime"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// closing is a handle of a view with SyncClose, on a descriptor that no
// fdatasync takes: where there is one, there is EINVAL.
func closing(t *testing.T) (*FS, *handle) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	h := &handle{node: &node{}, fd: int(w.Fd()), gone: make(chan struct{})}
	h.uses.begin() // and it never ends: the handle is not closed
	return &FS{openFiles: openFiles{sync: SyncClose, log: slog.New(slog.DiscardHandler)}}, h
}

// A flush while a write is under way flushes that write too, or the last close
// finds nothing to do.
func TestFlushDuringAWrite(t *testing.T) {
	f, h := closing(t)
	begun, land, landed := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		_ = f.tracked(h, func() error { close(begun); <-land; close(landed); return nil })
	}()
	<-begun
	flushed := make(chan error, 1)
	go func() { flushed <- h.flush() }()
	for h.unflushed.landing.TryRLock() { // until the flush waits
		h.unflushed.landing.RUnlock()
		select {
		case err := <-flushed:
			t.Fatalf("flushed before the write has landed: %v", err)
		default:
			runtime.Gosched()
		}
	}
	close(land)
	if err := <-flushed; err != unix.EINVAL {
		t.Errorf("flush: %v, want that of fdatasync", err)
	}
	<-landed
	if err := h.flush(); err != nil {
		t.Errorf("flush when there is nothing to flush: %v", err)
	}
}

// What a flush finds that no program has asked for, the program is told by the
// next call that asks: the backing tells it once.
func TestErrorOfAFlushOnTrouble(t *testing.T) {
	asks := map[string]func(f *FS, fh uint64) fuse.Status{
		"fsync": func(f *FS, fh uint64) fuse.Status { return f.Fsync(nil, &fuse.FsyncIn{Fh: fh}) },
		"fdatasync": func(f *FS, fh uint64) fuse.Status {
			return f.Fsync(nil, &fuse.FsyncIn{Fh: fh, FsyncFlags: fsyncDataOnly})
		},
	}
	for name, ask := range asks {
		f, h := closing(t)
		if err := f.tracked(h, func() error { return nil }); err != nil {
			t.Fatal(err)
		}
		f.flushOpen(h)
		file, err := os.Create(t.TempDir() + "/f") // as a volume that has said it once
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		h.fd = int(file.Fd())
		fh, _ := f.handles.add(h)
		if s := ask(f, fh); s != fuse.EINVAL {
			t.Errorf("%s: %v, want the flush's error", name, s)
		}
		if s := ask(f, fh); !s.Ok() {
			t.Errorf("%s, again: %v", name, s)
		}
	}
}
