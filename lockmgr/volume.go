package lockmgr

import (
	"errors"
	"fmt"
	"strings"
)

// ErrVolumeChanged: the volume's record in the service has changed since it was mounted, and with it
// the policy or the lock service that all mounts must agree on.
var ErrVolumeChanged = errors.New("the volume's record has changed since it was mounted: mount it again")

// VolumeInUseError lists the mounts that prevent a change of the volume's record.
type VolumeInUseError struct {
	Sessions []SessionInfo
}

func (e *VolumeInUseError) Error() string {
	mounts := make([]string, len(e.Sessions))
	for i, s := range e.Sessions {
		mounts[i] = fmt.Sprintf("%s on %s", s.Mountpoint, s.Node)
	}
	return fmt.Sprintf("the volume is mounted (%s): unmount it everywhere first; a mount that was killed counts until its TTL has passed", strings.Join(mounts, ", "))
}
