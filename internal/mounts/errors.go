package mounts

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"
)

// PathError reports an unusable SOURCE or MOUNTPOINT, in one line that says what to do.
type PathError struct {
	What string // "SOURCE", "MOUNTPOINT" or "DIR"
	Path string // as given
	Err  error  // of the operating system
}

// pathError removes the operation and path of an *os.PathError, which would be repeated.
func pathError(what, path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return &PathError{What: what, Path: path, Err: err}
}

func (e *PathError) Error() string {
	advice := ""
	switch {
	case e.Path == "":
		return e.What + " is empty; name a directory"
	case errors.Is(e.Err, fs.ErrNotExist):
		advice = "; create it (mkdir -p) or correct the path"
	case errors.Is(e.Err, unix.ENOTDIR):
		advice = "; name a directory"
	case errors.Is(e.Err, fs.ErrPermission):
		advice = "; run as a user who may read it"
	case errors.Is(e.Err, unix.ENOTCONN):
		advice = "; it is on a FUSE mount whose daemon has ended: unmount that first (umount -l)"
	}
	return fmt.Sprintf("%s %s: %v%s", e.What, e.Path, e.Err, advice)
}

func (e *PathError) Unwrap() error { return e.Err }

// MayPass reports whether the same path may be usable later: its file system is not mounted
// yet, or does not answer.
func (e *PathError) MayPass() bool {
	for _, mistake := range []error{unix.ENOTDIR, unix.ELOOP, unix.ENAMETOOLONG, fs.ErrPermission} {
		if errors.Is(e.Err, mistake) {
			return false
		}
	}
	return e.Path != ""
}

// MountedError reports that something is mounted there already.
type MountedError struct {
	Mount Mount // what is mounted there
}

func (e *MountedError) Error() string {
	m := e.Mount
	if m.FSType == FSType {
		return fmt.Sprintf("MOUNTPOINT %s is already a lockfs view of %s; unmount it (umount %s) or choose another", m.Point, m.Source, m.Point)
	}
	return fmt.Sprintf("MOUNTPOINT %s has %s (%s) mounted on it already; unmount that or choose another", m.Point, m.Source, m.FSType)
}
