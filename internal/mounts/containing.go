package mounts

import (
	"errors"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Containing returns the mount that holds path, an absolute one, and path's
// place below the mount point, "" for the mount point itself. What is left of
// path behind its last existing directory need not exist.
func Containing(path string) (m Mount, below string, err error) {
	for dir := filepath.Clean(path); ; dir = filepath.Dir(dir) {
		l, err := open(dir)
		if (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)) && dir != "/" {
			continue
		}
		if err != nil {
			return Mount{}, "", err
		}
		defer l.close()
		if m, err = l.mount(); err != nil {
			return Mount{}, "", err
		}
		rest, err := filepath.Rel(dir, path)
		if err != nil {
			return Mount{}, "", err
		}
		below, err = filepath.Rel(m.Point, filepath.Join(l.path, rest))
		if below == "." {
			below = ""
		}
		return m, below, err
	}
}
