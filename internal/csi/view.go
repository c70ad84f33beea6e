package csi

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

// view is the live view of a volume.
type view struct {
	root  *os.File // opened with O_PATH
	mount mounts.Mount
}

// openView fails with Unavailable while there is no view that answers. It hangs with the volume.
func openView(v config.Volume) (*view, error) {
	root, m, err := mounts.OpenView(v.Mountpoint)
	if err != nil {
		return nil, status.Errorf(codes.Unavailable, "no view of %s: %v", v.ID(), err)
	}
	return &view{root, m}, nil
}

func (v *view) close() { v.root.Close() }

// open opens a directory of the view with O_PATH.
func (v *view) open(dir string) (*os.File, error) {
	f, err := openBeneath(v.root, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return nil, status.Errorf(codes.NotFound, "the volume has no directory %s: %v", dir, err)
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		return nil, status.Errorf(codes.InvalidArgument, "the directory %s is reached by a symbolic link, which is not followed: %v", dir, err)
	case err != nil:
		return nil, status.Errorf(codes.Unavailable, "the directory %s of the volume: %v", dir, err)
	}
	return f, nil
}

// openBeneath opens a path in a directory. Programs can write to the view, so it follows no symbolic
// link, and enters no other mount.
func openBeneath(dir *os.File, name string, flags, mode uint64) (*os.File, error) {
	fd, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
		Flags: flags | unix.O_CLOEXEC, Mode: mode,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// makeAll is open, and makes the directories that are missing.
func (v *view) makeAll(dir string) (*os.File, error) {
	at, err := v.open(".")
	made := "."
	for part := range strings.SplitSeq(dir, "/") {
		if err != nil {
			return nil, err
		}
		err = unix.Mkdirat(int(at.Fd()), part, 0o755)
		at.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, &os.PathError{Op: "mkdir", Path: path.Join(made, part), Err: err}
		}
		made = path.Join(made, part)
		at, err = v.open(made)
	}
	return at, err
}
