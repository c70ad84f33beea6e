package mounts

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// CheckSource checks SOURCE, the directory that a view shows. It returns the absolute path
// without symbolic links.
func CheckSource(path string) (string, error) { return CheckShared("SOURCE", path) }

// CheckShared is CheckSource for a directory that a command's messages call what.
func CheckShared(what, path string) (string, error) {
	l, err := open(path)
	if err != nil {
		return "", pathError(what, path, err)
	}
	defer l.close()
	if _, err := firstName(l.path); err != nil && !errors.Is(err, io.EOF) {
		return "", pathError(what, path, err)
	}
	m, err := l.mount()
	if err != nil {
		return "", err
	}
	if m.FSType == FSType && filepath.Join(m.Root, strings.TrimPrefix(l.path, m.Point)) == "/" {
		return "", fmt.Errorf("%s %s is a lockfs view of %s: name that directory", what, path, m.Source)
	}
	return l.path, nil
}

// CheckMountpoint checks where a view of source will be mounted, and returns the absolute path
// without symbolic links. Call ClearStale first: a dead mount cannot be checked. Errors: *MountedError
// for a view that another daemon has mounted since.
func CheckMountpoint(source, mountpoint string) (string, error) {
	l, err := open(mountpoint)
	if err != nil {
		return "", pathError("MOUNTPOINT", mountpoint, err)
	}
	defer l.close()
	switch m, ok, err := l.mountedAt(); {
	case err != nil:
		return "", err
	case ok && m.FSType == FSType:
		return "", &MountedError{Mount: m}
	}
	if err := checkApart(source, l.path); err != nil {
		return "", err
	}
	if err := l.checkEmpty(); err != nil {
		return "", err
	}
	if os.Geteuid() != 0 {
		if err := checkUnguarded(l.path); err != nil {
			return "", err
		}
	}
	return l.path, nil
}

// checkApart fails if one directory is in the other: the daemon would wait for itself. Levels are
// compared by identity, because of bind mounts.
func checkApart(source, mountpoint string) error {
	src, err := os.Stat(source)
	if err != nil {
		return pathError("SOURCE", source, err)
	}
	mnt, err := os.Stat(mountpoint)
	if err != nil {
		return pathError("MOUNTPOINT", mountpoint, err)
	}
	if os.SameFile(src, mnt) {
		return fmt.Errorf("MOUNTPOINT %s is SOURCE itself; choose an empty directory elsewhere", mountpoint)
	}
	in, err := inside(mountpoint, src)
	if err != nil {
		return pathError("MOUNTPOINT", mountpoint, err)
	}
	if in {
		return fmt.Errorf("MOUNTPOINT %s is inside SOURCE %s; choose an empty directory outside of it", mountpoint, source)
	}
	in, err = inside(source, mnt)
	if err != nil {
		return pathError("SOURCE", source, err)
	}
	if in {
		return fmt.Errorf("MOUNTPOINT %s has SOURCE %s in it; choose an empty directory elsewhere", mountpoint, source)
	}
	return nil
}

// inside reports whether dir is an ancestor of path, an absolute path without
// symbolic links.
func inside(path string, dir fs.FileInfo) (bool, error) {
	for path != "/" {
		path = filepath.Dir(path)
		fi, err := os.Stat(path)
		if err != nil {
			return false, err
		}
		if os.SameFile(fi, dir) {
			return true, nil
		}
	}
	return false, nil
}

// checkEmpty looks at this directory, whatever is mounted on it by now.
func (l *location) checkEmpty() error {
	switch name, err := firstName(fmt.Sprintf("/proc/self/fd/%d", l.file.Fd())); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return pathError("MOUNTPOINT", l.path, err)
	default:
		return fmt.Errorf("MOUNTPOINT %s is not empty (it has %q); choose an empty directory", l.path, name)
	}
}

func firstName(dir string) (string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return "", err
	}
	defer f.Close()
	names, err := f.Readdirnames(1)
	if err != nil {
		return "", err
	}
	return names[0], nil
}
