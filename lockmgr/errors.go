package lockmgr

import (
	"errors"

	"github.com/lockfs/lockfs/internal/retry"
)

// The errors of this package, of its backends and of the sessions below them.
// They are compared with errors.Is; fs maps each to one errno.
var (
	// ErrContended: another owner holds the lock, or waits for it ahead of us, and the
	// caller does not wait, or not any longer.
	ErrContended = errors.New("locked by another owner")

	// ErrDeadlock: the caller would wait for itself, for one of its ancestors, or
	// for an owner that waits for it.
	ErrDeadlock = errors.New("the caller would wait for itself")

	// ErrUnavailable: the lock service gave no answer. It says nothing about
	// whether the request was carried out.
	ErrUnavailable = retry.ErrUnavailable

	// ErrSessionLost: the session ended, and every lock acquired on it.
	ErrSessionLost = errors.New("lock session lost")

	// ErrSuspended: the lock service has not answered for too long to be sure
	// that the lock is still ours. It may yet turn out that it is.
	ErrSuspended = errors.New("lock session suspended")

	// ErrLockLost: the session lives but the entry of this lock is gone from
	// the lock service, or an operator broke it.
	ErrLockLost = errors.New("lock lost")

	// ErrBroken: an operator broke the lock. It is an ErrLockLost too.
	ErrBroken = errors.New("broken")

	// ErrVolumeGone: the file that was locked cannot be reached any more, for the
	// volume's client is gone. It is the cause of an ErrLockLost.
	ErrVolumeGone = errors.New("the volume's client is gone")

	// ErrNotHeld: a release found no entry: it was deleted, or expired with
	// its session.
	ErrNotHeld = errors.New("lock not held")

	// ErrNotOwner: a release found an entry under its key that another
	// acquisition put there.
	ErrNotOwner = errors.New("lock held by another owner")

	// ErrClosed: the Manager is shutting down.
	ErrClosed = errors.New("lock manager closed")

	// ErrInvalidKey: a path that cannot be a lock key.
	ErrInvalidKey = errors.New("invalid lock key")

	// ErrTooLong: a path that is longer than MaxPath.
	ErrTooLong = errors.New("path too long to be locked")
)
