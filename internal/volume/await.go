package volume

import (
	"errors"
	"io/fs"
	"os"
)

// Await returns when the volume opens files, or refuses to. An NFS server that has just
// started lets nobody open or make a file until its earlier clients have had the time
// to come back: its grace period.
func Await(source string) {
	if _, err := readMarker(source); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if tmp, err := writeMarker(source, identity{}); err == nil {
		_ = os.Remove(tmp)
	}
}
