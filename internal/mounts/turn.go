package mounts

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// turnPoll is the time between two looks at a turn that another process has.
const turnPoll = 20 * time.Millisecond

func turnsIn(stateDir string) string { return filepath.Join(stateDir, "turns") }

// RemoveTurns removes what Turn left in stateDir. No daemon that uses it may be alive: two could then
// lock different files.
func RemoveTurns(stateDir string) { _ = os.Remove(turnsIn(stateDir)) }

// Turn waits until no other process that uses stateDir has the turn at mountpoint, an absolute path
// without symbolic links: two that look before they mount would both find nothing there. The turn
// lasts until end, or the end of this process.
func Turn(ctx context.Context, stateDir, mountpoint string) (end func(), err error) {
	// One file for all mountpoints. Two whose hashes are equal wait for each other.
	f, err := os.OpenFile(turnsIn(stateDir), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(mountpoint))
	turn := &unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(hash.Sum64() % math.MaxInt64), Len: 1}
	poll := time.NewTicker(turnPoll)
	defer poll.Stop()
	for {
		err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, turn)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EACCES) {
			f.Close()
			return nil, &os.PathError{Op: "lock", Path: f.Name(), Err: err}
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another lockfs began to mount at %s, and does not go on; end it: %w", mountpoint, ctx.Err())
		}
	}
}
