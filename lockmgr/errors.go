package lockmgr

import (
	"errors"

	"github.com/lockfs/lockfs/internal/retry"
)

// The errors of this package and its backends. Compare with errors.Is; fs maps each to one errno.
var (
	// ErrContended: another owner has the lock or is ahead in line, and the wait is over.
	ErrContended = errors.New("locked by another owner")

	// ErrDeadlock: the caller would wait for itself, an ancestor, or an owner that waits for it.
	ErrDeadlock = errors.New("the caller would wait for itself")

	// ErrUnavailable: the lock service gave no answer. The request may have been carried out.
	ErrUnavailable = retry.ErrUnavailable

	// ErrSessionLost: the session ended, with every lock acquired on it.
	ErrSessionLost = errors.New("lock session lost")

	// ErrSuspended: the service has not answered for too long. The lock may still be ours.
	ErrSuspended = errors.New("lock session suspended")

	// ErrLockLost: the session lives, but this lock's entry is gone, or an operator broke the
	// lock.
	ErrLockLost = errors.New("lock lost")

	// ErrBroken: an operator broke the lock. It is an ErrLockLost too.
	ErrBroken = errors.New("broken")

	// ErrVolumeGone: the volume's client is gone, and the locked file with it. It causes an
	// ErrLockLost.
	ErrVolumeGone = errors.New("the volume's client is gone")

	// ErrNotHeld: a release found no entry: it was deleted, or expired with its session.
	ErrNotHeld = errors.New("lock not held")

	// ErrNotOwner: a release found another acquisition's entry.
	ErrNotOwner = errors.New("lock held by another owner")

	// ErrStands: the request was handed on, and its entry stands. See HandsOn.
	ErrStands = errors.New("handed on with its entry")

	// ErrClosed: the Manager is shutting down.
	ErrClosed = errors.New("lock manager closed")

	// ErrUnderWay: a change in the volume has not returned. Its lock was not released, and ends with the
	// session.
	ErrUnderWay = errors.New("a change of a file is still under way")

	// ErrInvalidKey: the path cannot be a lock key.
	ErrInvalidKey = errors.New("invalid lock key")

	// ErrTooLong: the path is longer than MaxPath.
	ErrTooLong = errors.New("path too long to be locked")
)
