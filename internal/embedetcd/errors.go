package embedetcd

import (
	"errors"
	"fmt"
)

// ErrStateDir: the state directory cannot be used. The message says why and
// what to set.
var ErrStateDir = errors.New("unusable state directory")

// ErrServedElsewhere: another user, or another state directory, serves this SOURCE. Two services
// would not exclude each other's mounts.
var ErrServedElsewhere = errors.New("another lock service of this machine serves the directory")

var (
	errHeld    = errors.New("another process serves")
	errStopped = errors.New("it stopped")
	errEnded   = errors.New("it is gone")
)

// ExitError reports that the etcd process ended without being asked to.
type ExitError struct {
	Dir    string // the state directory
	Reason string // the last error etcd logged, in its own words; may be empty
	Err    error  // how it ended, most often an *exec.ExitError
}

func (e *ExitError) Error() string {
	s := fmt.Sprintf("the embedded lock service in %s ended: %v", e.Dir, e.Err)
	if e.Reason == "" {
		return s
	}
	return s + fmt.Sprintf(" (%s); check that there is room on its file system; %s", e.Reason, ifDamaged)
}

const ifDamaged = "if its data is damaged, unmount every view of this SOURCE and remove that directory: it holds nothing but locks"

func (e *ExitError) Unwrap() error { return e.Err }
