package fs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A signal interrupts a write, and the lock is lost: the second try writes nothing.
func TestInterruptedWriteIsCheckedAgain(t *testing.T) {
	var lost error
	calls := 0
	n, err := eachChecked(func() error { return lost }, func() (int, error) {
		calls++
		lost = lockmgr.ErrLockLost
		return -1, unix.EINTR
	})
	if n != 0 || err != lockmgr.ErrLockLost || calls != 1 {
		t.Errorf("%d, %v after %d calls", n, err, calls)
	}
}
