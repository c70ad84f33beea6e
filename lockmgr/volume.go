package lockmgr

import (
	"errors"
	"fmt"
	"strings"
)

// ErrVolumeChanged: the volume's record in the lock service is not the one this
// mount has seen. Somebody changed what all mounts have to agree on while this one
// was not there.
var ErrVolumeChanged = errors.New("the volume's record has changed since it was mounted: mount it again")

// VolumeInUseError reports the mounts that keep a volume's record as it is.
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
