package mounts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

type location struct {
	asked string   // what was looked up
	file  *os.File // opened with O_PATH
	path  string   // absolute, without symbolic links
}

// open looks up a directory, which may be a dead mount, without asking its file system.
func open(path string) (*location, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	resolved, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		f.Close()
		return nil, err
	}
	return &location{asked: path, file: f, path: resolved}, nil
}

func (l *location) close() { l.file.Close() }

// Resolve returns a directory's absolute path without symbolic links. It may be a dead mount.
func Resolve(path string) (string, error) {
	for {
		l, err := open(path)
		if err != nil {
			return "", err
		}
		stands, err := l.stands()
		l.close()
		if err != nil || stands {
			return l.path, err
		}
	}
}

// stands reports whether the path that was asked for still leads to the mount. If that was unmounted
// since, the kernel may have told a path that begins at its root.
func (l *location) stands() (bool, error) {
	now, err := open(l.asked)
	if err != nil {
		return false, err
	}
	defer now.close()
	was, err := l.mountID()
	if err != nil {
		return false, err
	}
	is, err := now.mountID()
	return is == was, err // an open file's mount keeps its id
}

// OpenBare opens a directory that is not in a view, else it fails with a *MountedError.
func OpenBare(path string) (*os.File, error) {
	l, err := open(path)
	if err != nil {
		return nil, err
	}
	defer l.close()
	m, err := l.mount()
	if err == nil && m.FSType == FSType {
		err = &MountedError{Mount: m}
	}
	if err != nil {
		return nil, err
	}
	// This directory was checked, whatever the path means by now.
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", l.file.Fd()), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), l.path), nil
}

// mount returns the mount through which the path was reached. One that was unmounted since is in no
// table: the path leads elsewhere by now, and is looked up again.
func (l *location) mount() (Mount, error) {
	for {
		id, err := l.mountID()
		if err != nil {
			return Mount{}, fmt.Errorf("the mount that holds %s: %w", l.path, err)
		}
		table, err := List()
		if err != nil {
			return Mount{}, err
		}
		for _, m := range table {
			if m.ID == id {
				// All paths of a mount are Point or in it, so this is the kernel's mark of an
				// unlinked directory, and no name.
				if l.path == m.Point+" (deleted)" {
					l.path = m.Point
				}
				return m, nil
			}
		}
		if stands, err := l.stands(); err != nil {
			return Mount{}, err
		} else if stands {
			return Mount{}, fmt.Errorf("the mount that holds %s (id %d) is not in /proc/self/mountinfo", l.path, id)
		}
		now, err := open(l.asked)
		if err != nil {
			return Mount{}, err
		}
		l.close()
		*l = *now
	}
}

var errNoMountID = errors.New("no mnt_id in /proc/self/fdinfo")

func (l *location) mountID() (int, error) {
	return mountID(fmt.Sprintf("/proc/self/fdinfo/%d", l.file.Fd()))
}

// mountID reads the id of an open file's mount from the file's fdinfo.
func mountID(fdinfo string) (int, error) {
	info, err := os.ReadFile(fdinfo)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(info)) {
		if id, ok := strings.CutPrefix(line, "mnt_id:"); ok {
			return strconv.Atoi(strings.TrimSpace(id))
		}
	}
	return 0, errNoMountID
}

// Find returns the topmost mount exactly at path, and whether there is one. path may be a symbolic
// link, and must be a reachable directory.
func Find(path string) (Mount, bool, error) {
	l, err := open(path)
	if err != nil {
		return Mount{}, false, err
	}
	defer l.close()
	return l.mountedAt()
}

func (l *location) mountedAt() (Mount, bool, error) {
	m, err := l.mount()
	if err != nil || m.Point != l.path {
		return Mount{}, false, err
	}
	return m, true, nil
}

// OpenView opens, with O_PATH, the root of the live view at mountpoint. It may hang with the
// view.
func OpenView(mountpoint string) (*os.File, Mount, error) {
	l, err := open(mountpoint)
	if err != nil {
		return nil, Mount{}, err
	}
	m, ok, err := l.mountedAt()
	if err == nil && (!ok || m.FSType != FSType) {
		err = fmt.Errorf("%s: no view is mounted there", mountpoint)
	}
	if err == nil && l.dead() {
		err = fmt.Errorf("%s: the daemon of the view has ended", mountpoint)
	}
	if err != nil {
		l.close()
		return nil, Mount{}, err
	}
	return l.file, m, nil
}
