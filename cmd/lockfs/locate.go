package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/embedetcd"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// locate finds the volume that path is in, the path's prefix in it, and where
// its locks are kept.
func (o *listOptions) locate(path string) (prefix string, dial etcdlock.DialConfig, err error) {
	if len(o.dial.Endpoints) > 0 && o.name != "" {
		return path, o.dial, nil
	}
	source, prefix, err := findVolume(path)
	if err != nil {
		return "", dial, err
	}
	if o.namespace, o.name, err = volume.NameOf(source); err != nil {
		return "", dial, err
	}
	dial = o.dial
	if len(dial.Endpoints) == 0 {
		dir, err := embeddedDir(source)
		if err != nil {
			return "", dial, err
		}
		dial.Endpoints = []string{embedetcd.EndpointOf(dir)}
	}
	return prefix, dial, nil
}

// findVolume finds the root of the volume that path is in, in a view of it or
// in itself, and path's place below.
func findVolume(path string) (source, prefix string, err error) {
	if path == "" {
		path = "."
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	if m, below, err := mounts.Containing(abs); err != nil {
		return "", "", err
	} else if m.FSType == mounts.FSType {
		return m.Source, below, nil
	}
	for dir := abs; ; dir = filepath.Dir(dir) {
		_, _, err := volume.NameOf(dir)
		if err == nil {
			below, err := filepath.Rel(dir, abs)
			if below == "." {
				below = ""
			}
			return dir, below, err
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", "", err
		}
		if dir == filepath.Dir(dir) {
			return "", "", usage(fmt.Errorf("%s is neither in a lockfs view nor in a directory that one shows: give such a PATH, or --endpoints and --name", path))
		}
	}
}
