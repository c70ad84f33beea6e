package fs

import (
	"bytes"
	"context"
	"log/slog"
	"os"
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
		f := &locker{log: slog.New(slog.NewTextHandler(&log, nil))}
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

// FUSE refuses a reply with an errno of the kernel's own, and its program hangs. By ENOSYS
// it does without such requests from then on.
func TestErrnoOfTheKernel(t *testing.T) {
	for e, want := range map[unix.Errno]fuse.Status{
		unix.EDQUOT: fuse.Status(unix.EDQUOT),
		unix.ENOSYS: fuse.Status(unix.EOPNOTSUPP),
		511:         511,
		512:         fuse.EIO, // ERESTARTSYS
		518:         stale,    // EOPENSTALE
		521:         stale,    // EBADHANDLE
		524:         fuse.Status(unix.EOPNOTSUPP),
		528:         fuse.EIO, // EJUKEBOX
		4095:        fuse.EIO,
	} {
		if got := errno(&os.PathError{Op: "open", Path: "x", Err: e}); got != want {
			t.Errorf("%d: %v, want %v", e, got, want)
		}
	}
}

// A client that does not know for a moment what a file is, is asked again. On GlusterFS opens of a
// file that programs of another node replace or remove all the time got EBADFD, or ESTALE.
func TestPastEBADFD(t *testing.T) {
	for _, test := range []struct {
		refused int
		last    error
		want    error
	}{{0, nil, nil}, {3, nil, nil}, {3, unix.ESTALE, unix.ESTALE}, {1000, nil, unix.EBADFD}} {
		synctest.Test(t, func(t *testing.T) {
			left := test.refused
			err := pastEBADFD(func() error {
				if left--; left >= 0 {
					return unix.EBADFD
				}
				return test.last
			})
			if err != test.want {
				t.Errorf("refused %d times, then %v: %v, want %v", test.refused, test.last, err, test.want)
			}
		})
	}
}
