package mounts

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Containing returns the mount of the absolute path, and the path below its mount point. The last
// parts of path need not exist.
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

// Below returns the mounts below path, without those that another mount covers.
func Below(path string) ([]Mount, error) {
	table, err := List()
	if err != nil {
		return nil, err
	}
	var below []Mount
	for _, m := range table {
		if !strings.HasPrefix(m.Point, strings.TrimSuffix(path, "/")+"/") {
			continue
		}
		if top, ok, err := Find(m.Point); err == nil && ok && top.ID == m.ID {
			below = append(below, m)
		}
	}
	return below, nil
}
