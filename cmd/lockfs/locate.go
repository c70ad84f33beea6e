package main

import (
	"errors"
	"fmt"
	"io/fs"
	pathpkg "path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/embedetcd"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// locate finds the volume that path is in, the path's prefix in it, and where
// its locks are kept.
func (o *listOptions) locate(path string) (prefix string, dial etcdlock.DialConfig, err error) {
	source, prefix, err := findVolume(path)
	if errors.Is(err, errNoVolume) && len(o.dial.Endpoints) > 0 && o.name != "" {
		prefix = pathpkg.Clean("/" + path)[1:]
		return prefix, o.dial, nil
	}
	if err != nil {
		return "", dial, err
	}
	namespace, name, err := volume.NameOf(source)
	if err != nil {
		return "", dial, err
	}
	if o.name != "" && o.name != name || o.namespaceSet && o.namespace != namespace {
		return "", dial, usage(fmt.Errorf("%s is in volume %s/%s, and --namespace or --name say another: drop them, or PATH", path, namespace, name))
	}
	o.namespace, o.name = namespace, name
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

// errNoVolume: a path that no volume on this machine holds.
var errNoVolume = errors.New("neither in a lockfs view nor in a directory that one shows")

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
	m, below, err := mounts.Containing(abs)
	if err != nil {
		return "", "", err
	}
	if m.FSType == mounts.FSType {
		// A bind mount shows a part of the view.
		return m.Source, strings.TrimPrefix(filepath.Join(m.Root, below), "/"), nil
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
			return "", "", usage(fmt.Errorf("%s is %w: give such a PATH, or --endpoints and --name", path, errNoVolume))
		}
	}
}
