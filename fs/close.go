package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Close refuses waiting opens, unmounts the view, and flushes what programs have written. It also
// unmounts a view in use, in all mount namespaces: programs get errors from their open files, at
// once if the daemon is root's, else when it exits.
//
// After Close the view writes no more, unless Close fails with ctx's error: a write is still under
// way, and its lock must not be released. Call Close again.
func (f *FS) Close(ctx context.Context) error {
	f.locks.Refuse()
	defer f.callers.cache.Close()
	inUse := false
	if !f.gone() {
		inUse = f.unmount() != nil
	}
	if inUse {
		f.log.Warn("the view is in use; open files in it will fail", slog.String("mountpoint", f.mount))
	}
	err := f.settle(ctx)
	if inUse {
		if detachErr := f.detach(); detachErr != nil {
			return errors.Join(fmt.Errorf("unmount %s: %w", f.mount, detachErr), err)
		}
		f.cut = f.root
	}
	// In another mount namespace, requests without locks would go on under an old policy.
	f.cut = f.cut || f.cutOff()
	f.unmounted = true
	if f.cut {
		f.shutGates()
	}
	if err != nil {
		return err
	}
	if !f.cut { // programs keep their open files, for reading
		go func() { <-f.ended; f.release() }()
		return nil
	}
	select {
	case <-f.ended:
	case <-ctx.Done():
		return fmt.Errorf("a request is still under way: %w", ctx.Err())
	}
	f.release()
	return nil
}

// An unmounted view that does not end within elsewhere is in another mount namespace too.
const elsewhere = time.Second

func (f *FS) unmount() error {
	done := make(chan error, 1)
	go func() { done <- f.disconnect() }()
	tick := time.NewTicker(elsewhere)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			f.cut = err == nil
			return err
		case <-tick.C:
			if f.gone() {
				f.log.Warn("the view is in another mount namespace as well", slog.String("mountpoint", f.mount), slog.Bool("cut_off", f.abort >= 0))
				return nil
			}
		}
	}
}

// gone reports whether the view has left its mountpoint, where another may be by now.
func (f *FS) gone() bool {
	select {
	case <-f.ended: // by somebody else
		return true
	default: // until then no other view has our device number
	}
	dev, err := f.procs.MountDev(os.Getpid(), f.mount)
	return f.unmounted || f.dev != "" && (err != nil || dev != f.dev)
}

// settle ends the background work, which includes flushes, and closes what programs have open.
func (f *FS) settle(ctx context.Context) error {
	f.settling.Do(func() {
		go func() {
			defer close(f.settled)
			_ = f.rest(context.Background())
			handles := f.handles.drain()
			for _, h := range handles {
				h.leave()
			}
			for _, h := range handles {
				<-h.gone
			}
		}()
	})
	select {
	case <-f.settled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("a write or a flush is still under way: %w", ctx.Err())
	}
}

// detach removes a view in use from the tree. Only root can also end its connection.
func (f *FS) detach() error {
	if f.root {
		return unix.Unmount(f.mount, unix.MNT_DETACH|unix.MNT_FORCE)
	}
	out, err := exec.Command("fusermount3", "-uz", f.mount).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3 -uz: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// release closes what is left: at an unmount the kernel sends no FORGET and no RELEASEDIR.
func (f *FS) release() {
	for _, d := range f.dirs.drain() {
		unix.Close(d.fd)
	}
	f.nodes.close()
	f.closeDevice()
	if f.abort >= 0 {
		unix.Close(f.abort)
	}
}
