package fs

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A program that polls for a lock does not fill the log, nor hide from it what
// is refused for another reason.
func TestRefusalsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &FS{log: slog.New(slog.NewTextHandler(&log, nil))}
		refuse := func(err error, contended, want fuse.Status) {
			if got := f.refused(&fuse.InHeader{}, lockmgr.Key{}, err, contended); got != want {
				t.Errorf("%v: %v, want %v", err, got, want)
			}
		}
		again := fuse.Status(unix.EAGAIN)
		for range 1000 {
			refuse(lockmgr.ErrContended, again, again)
			time.Sleep(10 * time.Millisecond)
		}
		refuse(lockmgr.ErrUnavailable, fuse.EBUSY, fuse.Status(unix.ENOLCK))
		refuse(lockmgr.ErrLockLost, fuse.EBUSY, fuse.EIO)
		refuse(context.Canceled, fuse.EBUSY, fuse.EINTR)
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 12 || !strings.Contains(lines[5], "unlogged=99") || !strings.Contains(lines[10], "ENOLCK") || !strings.Contains(lines[11], "EIO") {
			t.Errorf("%d lines:\n%s", len(lines), &log)
		}
	})
}
