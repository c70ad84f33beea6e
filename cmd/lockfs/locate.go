package main

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
	pathpkg "path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/embedetcd"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
)

// place is a path in a volume.
type place struct {
	source string // the volume's root on this machine; "" if the volume was named by flags
	path   string // below it; "" is the root
}

// reach finds path's volume, and connects to its lock service. It starts no embedded etcd.
func (v *volumeFlags) reach(ctx context.Context, cmd *cobra.Command, path string) (serve.Backend, place, func(), error) {
	if err := v.checkBackend(false); err != nil {
		return nil, place{}, nil, err
	}
	v.namespaceSet = cmd.Flags().Changed("namespace")
	if v.inConfig() { // a mistake in the file comes before one in PATH
		if _, err := config.NewReader(v.config).Load(); err != nil {
			return nil, place{}, nil, usage(err)
		}
	}
	var at place
	var embedded string // the state directory; "": the lock service is elsewhere
	var err error
	located := make(chan struct{})
	go func() {
		defer close(located)
		at, embedded, err = v.locate(path)
	}()
	select {
	case <-located:
	case <-ctx.Done(): // the goroutine hangs in the kernel
		return nil, place{}, nil, fmt.Errorf("%s: its file system does not answer; if that is a view, name the file in the directory that it shows", path)
	}
	if err != nil {
		return nil, at, nil, err
	}
	quiet := slog.New(slog.DiscardHandler)
	if v.inConfig() {
		listed, err := v.listed(v.namespace, v.name)
		if err != nil {
			return nil, at, nil, err
		}
		backend, closeBackend, err := v.configFlags.connect(ctx, &v.kubeFlags, listed, quiet)
		return backend, at, closeBackend, err
	}
	if v.inKubernetes() {
		backend, closeBackend, err := v.dialLeases(v.namespace, v.name, v.leaseNamespace, quiet)
		return backend, at, closeBackend, err
	}
	if embedded != "" {
		backend, closeBackend, err := v.dialEmbedded(ctx, embedded)
		return backend, at, closeBackend, err
	}
	backend, closeBackend, err := v.dialBackend(ctx, v.dial, false)
	return backend, at, closeBackend, err
}

// dialEmbedded connects to the embedded etcd in dir. When its mount ends, another takes it over
// within takeOverTime, and may then need long to start it on a slow disk.
func (v *volumeFlags) dialEmbedded(ctx context.Context, dir string) (serve.Backend, func(), error) {
	const takeOverTime = 2 * time.Second
	dial := v.dial
	dial.Endpoints, dial.DialTimeout = []string{embedetcd.EndpointOf(dir)}, takeOverTime
	for {
		backend, closeBackend, err := v.dialBackend(ctx, dial, true)
		switch {
		case err == nil:
			return backend, closeBackend, nil
		case !errors.Is(err, context.DeadlineExceeded) || !embedetcd.Served(dir):
			return nil, nil, fmt.Errorf("nobody serves the locks: is the volume mounted on this machine, by this user? If by 'lockfs serve', give its --config (%w)", err)
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("the embedded lock service does not answer: is its disk, that of %s, slow or full? (%w)", dir, err)
		}
	}
}

// lockedIn makes sure that backend has the place's locks, if the volume is on this machine.
func (at place) lockedIn(ctx context.Context, backend serve.Backend) error {
	if at.source == "" {
		return nil
	}
	err := volume.CheckLook(ctx, at.source, backend)
	if errors.As(err, new(*volume.OtherServiceError)) {
		return usage(err)
	}
	return err
}

// keys returns what an open for write locks. A volume not on this machine: a file has one name.
func (at place) keys() (keys []lockmgr.Key, err error) {
	if at.source != "" {
		keys, err = fs.Keys(at.source, at.path)
	} else {
		var key lockmgr.Key
		key, err = lockmgr.FileKey(at.path)
		keys = []lockmgr.Key{key}
	}
	switch {
	case errors.Is(err, lockmgr.ErrInvalidKey) && at.path == "":
		return nil, usage(errors.New("PATH is the whole volume: name a file"))
	case errors.Is(err, lockmgr.ErrInvalidKey):
		return nil, usage(err)
	}
	return keys, err
}

// entries returns the entries of the place, also by the file's other names, below and above it.
func (at place) entries(ctx context.Context, backend lockmgr.Backend, keys []lockmgr.Key) ([]lockmgr.Entry, error) {
	entries, err := backend.Entries(ctx, at.path)
	if err != nil || len(keys) < 2 {
		return entries, err
	}
	// An entry of the inode comes together with that of a name.
	all, err := backend.Entries(ctx, "")
	wanted := make(map[lockmgr.AcquisitionID]bool)
	for _, e := range entries {
		wanted[e.Holder.AcquisitionID] = true
	}
	for _, e := range all {
		if e.Key == keys[1] {
			wanted[e.Holder.AcquisitionID] = true
		}
	}
	return slices.DeleteFunc(all, func(e lockmgr.Entry) bool { return !wanted[e.Holder.AcquisitionID] }), err
}

// advisory returns the place's flock and fcntl locks: inodes have no path below a directory.
func (at place) advisory(ctx context.Context, backend lockmgr.Backend) ([]lockmgr.Entry, error) {
	service, ok := backend.(lockmgr.AdvisoryBackend)
	if !ok {
		return nil, nil
	}
	var tables []lockmgr.Key // none: all
	if at.path != "" {
		if at.source == "" {
			return nil, nil
		}
		key, ok, err := fs.InodeKey(at.source, at.path)
		if err != nil || !ok {
			return nil, nil // as for the keys of the place
		}
		tables = append(tables, key)
	}
	rows, err := service.AdvisoryRows(ctx, tables...)
	if err != nil {
		return nil, err
	}
	return rows.Entries()
}

func (v *volumeFlags) locate(path string) (at place, embedded string, err error) {
	at.source, at.path, err = findVolume(path)
	if errors.Is(err, errNoVolume) && (v.remote() || v.inConfig()) && v.name != "" {
		return place{path: pathpkg.Clean("/" + path)[1:]}, "", nil
	}
	if err != nil {
		return at, "", err
	}
	namespace, name, err := volume.NameOf(at.source)
	if err != nil {
		return at, "", err
	}
	if v.name != "" && v.name != name || v.namespaceSet && v.namespace != namespace {
		return at, "", usage(fmt.Errorf("%s is in volume %s/%s, but --namespace or --name name another: drop them, or PATH", path, namespace, name))
	}
	v.namespace, v.name = namespace, name
	if !v.remote() && !v.inConfig() {
		embedded, err = embeddedDir(at.source)
	}
	return at, embedded, err
}

// inConfig reports whether the file of 'lockfs serve' says where the locks are. Flags that
// say so override the file.
func (v *volumeFlags) inConfig() bool { return v.config != "" && !v.remote() }

// errNoVolume: the path is in no volume on this machine.
var errNoVolume = errors.New("neither in a lockfs view nor in a directory that one shows")

// findVolume finds path's volume and place in it. It follows symbolic links, as an open does.
func findVolume(path string) (source, below string, err error) {
	asked, err := filepath.Abs(path)
	if err != nil {
		return "", "", err
	}
	m, below, err := mounts.Containing(follow(asked))
	switch {
	case errors.Is(err, unix.ENOTCONN):
		return "", "", fmt.Errorf("%s is on a FUSE mount whose daemon has ended: mount it again; if it was a view, PATH can be in the directory that it showed (%w)", asked, err)
	case err != nil:
		return "", "", err
	}
	if m.FSType == mounts.FSType {
		if m.Unlinked {
			return "", "", usage(fmt.Errorf("%s is in a directory that was named %s in the volume, and may have another name now: name the file in %s", asked, m.Root, m.Source))
		}
		// This may be a bind mount of a part of the view.
		return m.Source, strings.TrimPrefix(filepath.Join(m.Root, below), "/"), nil
	}
	abs := filepath.Join(m.Point, below)
	for dir := abs; ; dir = filepath.Dir(dir) {
		_, _, err := volume.NameOf(dir)
		if err == nil {
			below, err := filepath.Rel(dir, abs)
			if below == "." {
				below = ""
			}
			return dir, below, err
		}
		if !errors.Is(err, iofs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", "", err
		}
		if dir == filepath.Dir(dir) {
			return "", "", usage(fmt.Errorf("%s is %w: give such a PATH, or --endpoints (or --backend kubernetes, or --config) and --name", asked, errNoVolume))
		}
	}
}

// follow resolves a path's last name, even if that links to nothing.
func follow(abs string) string {
	for range maxLinks {
		dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
		if err != nil {
			break
		}
		abs = filepath.Join(dir, filepath.Base(abs))
		target, err := os.Readlink(abs)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		abs = target
	}
	return abs
}

// maxLinks is how many symbolic links the kernel follows.
const maxLinks = 40
