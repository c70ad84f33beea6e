package fs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

const (
	stale  = fuse.Status(unix.ESTALE)
	exists = fuse.Status(unix.EEXIST)
	ended  = fuse.Status(unix.ENOTCONN) // the view is being closed, and what is open in it is so already
)

// errno is the only place where an error becomes an errno of a program.
func errno(err error) fuse.Status {
	var e unix.Errno
	switch {
	case err == nil:
		return fuse.OK
	case errors.As(err, new(*lockmgr.HandedOnError)):
		return handedOn
	case errors.Is(err, lockmgr.ErrSessionLost), errors.Is(err, lockmgr.ErrLockLost),
		errors.Is(err, lockmgr.ErrSuspended):
		// The cause may be any error below. But a lock that was never granted is unavailable.
		if errors.Is(err, lockmgr.ErrUnavailable) && errors.Is(err, lockmgr.ErrSuspended) {
			return fuse.Status(unix.ENOLCK)
		}
		return fuse.EIO
	case errors.Is(err, lockmgr.ErrClosed):
		return ended
	case errors.As(err, &e):
		return ofPrograms(e)
	case errors.Is(err, context.Canceled):
		return fuse.EINTR
	case errors.Is(err, lockmgr.ErrDeadlock):
		return fuse.Status(unix.EDEADLK)
	case errors.Is(err, lockmgr.ErrContended):
		return fuse.EBUSY
	case errors.Is(err, lockmgr.ErrUnavailable), errors.Is(err, lockmgr.ErrTooMany):
		return fuse.Status(unix.ENOLCK)
	case errors.Is(err, lockmgr.ErrTooLong):
		return fuse.Status(unix.ENAMETOOLONG)
	case errors.Is(err, lockmgr.ErrInvalidKey):
		return fuse.EINVAL
	}
	return fuse.EIO
}

// ofPrograms replaces errnos that programs must not see. FUSE refuses replies with the
// kernel-internal errnos that NFS lets out, and programs would hang. After ENOSYS the kernel never
// sends that request again: each later open or fsync would succeed without one.
func ofPrograms(e unix.Errno) fuse.Status {
	const (
		internal   = unix.Errno(512) // the first of include/linux/errno.h
		eOpenStale = unix.Errno(518)
		eBadHandle = unix.Errno(521)
		eNotSupp   = unix.Errno(524)
	)
	switch {
	case e == unix.ENOSYS:
		return fuse.Status(unix.EOPNOTSUPP)
	case e < internal:
		return fuse.Status(e)
	case e == eOpenStale, e == eBadHandle:
		return stale
	case e == eNotSupp:
		return fuse.Status(unix.EOPNOTSUPP)
	}
	return fuse.EIO
}

// isRefusal: after any other error the volume's client may still make the call.
func isRefusal(err error) bool {
	switch err {
	case unix.EPERM, unix.EACCES, unix.EROFS, unix.ENOENT, unix.ESTALE, unix.EEXIST, unix.ENOTEMPTY, unix.ENOTDIR, unix.EISDIR,
		unix.EXDEV, unix.EINVAL, unix.ENAMETOOLONG, unix.ELOOP, unix.EMLINK, unix.EBUSY, unix.ETXTBSY, unix.ENOSPC, unix.EDQUOT,
		unix.ENOSYS, unix.EOPNOTSUPP:
		return true
	}
	return false
}

// contended is what an open gets when others have the file, or its name changes with each try.
func contended(flags uint32) fuse.Status {
	if flags&unix.O_NONBLOCK != 0 {
		return fuse.EAGAIN
	}
	return fuse.EBUSY
}

// refused logs and maps err. busy is EBUSY, or EAGAIN if the caller does not want to wait.
func (f *locker) refused(in *fuse.InHeader, key lockmgr.Key, err error, busy fuse.Status) fuse.Status {
	s := errno(err)
	if s == fuse.EBUSY {
		s = busy
	}
	level := slog.LevelInfo
	switch {
	case s == fuse.EINTR, s == handedOn:
		return s
	case errors.Is(err, lockmgr.ErrDeadlock), !errors.Is(err, lockmgr.ErrContended):
		level = slog.LevelWarn
	}
	if unlogged, ok := f.refusals.next(s, time.Now()); ok {
		f.log.Log(context.Background(), level, "lock refused", slog.String("path", key.String()),
			slog.Uint64("tid", uint64(in.Pid)), slog.String("errno", unix.ErrnoName(unix.Errno(s))), slog.Any("error", err),
			slog.Int("unlogged", unlogged))
	}
	return s
}

// sparse limits the log to one line per second and errno: a program that polls is refused often.
type sparse struct {
	mu    sync.Mutex
	lines map[fuse.Status]*spate
}

type spate struct {
	last     time.Time // when a line was logged
	unlogged int       // since then
}

// next reports whether a line is due, and how many were left out before it.
func (l *sparse) next(s fuse.Status, now time.Time) (unlogged int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.lines[s]
	if p == nil {
		if l.lines == nil {
			l.lines = make(map[fuse.Status]*spate)
		}
		p = &spate{}
		l.lines[s] = p
	}
	if now.Sub(p.last) < time.Second {
		p.unlogged++
		return 0, false
	}
	unlogged = p.unlogged
	*p = spate{last: now}
	return unlogged, true
}

// exhausted reports whether the daemon, or the machine, had no descriptor or memory left.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}
