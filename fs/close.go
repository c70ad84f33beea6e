package fs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	inUse := f.kernel.unmount() != nil
	if inUse {
		f.log.Warn("the view is in use; open files in it will fail", slog.String("mountpoint", f.kernel.mountpoint))
	}
	err := f.closeFiles(ctx)
	if partErr := f.kernel.part(inUse); partErr != nil {
		return errors.Join(partErr, err)
	}
	if f.kernel.cut {
		f.gates.shut()
	}
	if err != nil {
		return err
	}
	if !f.kernel.cut { // programs keep their open files, for reading
		go func() { <-f.kernel.ended; f.release() }()
		return nil
	}
	select {
	case <-f.kernel.ended:
	case <-ctx.Done():
		return fmt.Errorf("a request is still under way: %w", ctx.Err())
	}
	f.release()
	return nil
}

// closeFiles ends the housekeeping, which includes flushes, and closes what programs have open.
func (f *FS) closeFiles(ctx context.Context) error {
	f.filesClosing.Do(func() {
		go func() {
			defer close(f.filesClosed)
			_ = f.housekeeping.end(context.Background())
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
	case <-f.filesClosed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("a write or a flush is still under way: %w", ctx.Err())
	}
}

// release closes what is left: at an unmount the kernel sends no FORGET and no RELEASEDIR.
func (f *FS) release() {
	for _, d := range f.dirs.drain() {
		d.close(f.nodes.pool.memory)
	}
	f.nodes.close()
	f.kernel.close()
}
