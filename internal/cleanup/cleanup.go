package cleanup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/status"
	"github.com/lockfs/lockfs/internal/volume"
)

// answers is how long a view may take to answer. A view that does not answer in time counts
// as alive: a dead one fails at once.
const answers = 2 * time.Second

// ErrLeft: something could not be removed, and was reported.
var ErrLeft = errors.New("not all could be removed")

// InUseError says what is still in use; nothing was done.
type InUseError struct{ What, Advice string }

func (e *InUseError) Error() string { return e.What + ": " + e.Advice }

// alive is the directory of the lifelines.
const alive = "alive"

// embedded is the directory of the embedded etcds' data, which is not removed.
const embedded = "embedded"

// Run cleans the directories that exist. report is told of each thing that was removed or
// is left. Errors: *InUseError, ErrLeft, those of the operating system.
func Run(dirs []string, report func(line string)) error {
	var there []string
	for _, dir := range dirs {
		path, err := mounts.Resolve(dir)
		if err == nil {
			there = append(there, path)
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	var dead []string
	for _, dir := range there {
		found, err := views(dir)
		if err != nil {
			return err
		}
		dead = append(dead, found...)
		if slices.Contains(found, dir) {
			continue // nothing below it answers before it is unmounted
		}
		if err := noneLives(filepath.Join(dir, alive)); err != nil {
			return err
		}
	}
	for _, point := range dead {
		if err := mounts.ClearStale(point); err != nil {
			return err
		}
		report("unmounted the dead view at " + point)
	}
	left := false
	for _, dir := range there {
		if err := noneLives(filepath.Join(dir, alive)); err != nil { // a dead view may have hidden one
			return err
		}
		sweep(filepath.Join(dir, alive))
		status.Sweep(dir)
		handover.Sweep(dir)
		mounts.RemoveTurns(dir)
		w := walk{root: dir, report: report}
		if err := w.top(); err != nil {
			return err
		}
		left = left || w.left
	}
	if left {
		return ErrLeft
	}
	return nil
}

// views returns the mountpoints of dead views at dir and below. Errors: *InUseError for other
// mounts.
func views(dir string) (dead []string, err error) {
	table, err := mounts.List()
	if err != nil {
		return nil, err
	}
	for _, m := range table {
		if m.Point != dir && !strings.HasPrefix(m.Point, strings.TrimSuffix(dir, "/")+"/") {
			continue
		}
		if i := slices.IndexFunc(dead, func(d string) bool { return strings.HasPrefix(m.Point, d+"/") }); i >= 0 {
			return nil, &InUseError{fmt.Sprintf("%s (%s) is mounted at %s, below a dead view", m.Source, m.FSType, m.Point), "unmount both first: umount -l " + dead[i]}
		}
		if m.FSType != mounts.FSType {
			if m.Point == dir {
				continue // a container's, or another disk
			}
			return nil, &InUseError{fmt.Sprintf("%s (%s) is mounted at %s", m.Source, m.FSType, m.Point), "unmount it first"}
		}
		lives := make(chan bool, 1)
		go func() { lives <- mounts.Served(m.Point) }()
		select {
		case served := <-lives:
			if !served {
				dead = append(dead, m.Point)
				continue
			}
		case <-time.After(answers):
		}
		return nil, &InUseError{fmt.Sprintf("a view of %s is served at %s", m.Source, m.Point), "stop its daemon first (in Kubernetes, delete the DaemonSet; else end 'lockfs mount' or 'lockfs serve')"}
	}
	return dead, nil
}

// noneLives fails if a daemon is alive whose views are in another mount namespace.
func noneLives(dir string) error {
	return eachVolume(dir, func(dir string) error {
		lines, err := os.ReadDir(dir)
		if err != nil {
			return err
		}
		for _, line := range lines {
			l, err := lifeline.Claim(dir, line.Name())
			if err == nil {
				l.Leave()
			} else if errors.Is(err, lifeline.ErrAlive) {
				return &InUseError{"a daemon lives that holds " + filepath.Join(dir, line.Name()), "stop it first; its views may be in another mount namespace, as in a container"}
			}
		}
		return nil
	})
}

func sweep(dir string) {
	_ = eachVolume(dir, func(dir string) error {
		return lifeline.Sweep(dir, func(string) bool { return false })
	})
}

func eachVolume(dir string, do func(dir string) error) error {
	volumes, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, v := range volumes {
		if v.IsDir() && err == nil {
			err = do(filepath.Join(dir, v.Name()))
		}
	}
	return err
}

type walk struct {
	root   string
	report func(line string)
	left   bool
}

func (w *walk) keep(path, why string) {
	w.left = true
	w.report("left " + path + ": " + why)
}

// top cleans the root directory, and removes it.
func (w *walk) top() error {
	dir, err := mounts.OpenBare(w.root)
	if in := new(mounts.MountedError); errors.As(err, &in) {
		return &InUseError{w.root + " is in a view of " + in.Mount.Source, "name a directory that holds views"}
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	if !w.below(dir) {
		return nil
	}
	switch err := w.rmdir(dir, unix.AT_FDCWD, w.root); err {
	case nil:
		w.report("removed " + w.root)
	case unix.EBUSY, unix.EROFS: // it is mounted here, as in a container
	default:
		w.keep(w.root, err.Error())
	}
	return nil
}

// rmdir removes dir, which is called name in parent, and its guard.
func (w *walk) rmdir(dir *os.File, parent int, name string) error {
	guarded, err := mounts.Unguard(dir)
	if err == nil {
		err = unix.Unlinkat(parent, name, unix.AT_REMOVEDIR)
	}
	if err != nil && guarded {
		_ = mounts.GuardFile(dir)
	}
	return err
}

// below removes the empty directories in dir, and reports whether dir is empty then.
func (w *walk) below(dir *os.File) (empty bool) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		w.keep(dir.Name(), err.Error())
		return false
	}
	if slices.ContainsFunc(entries, func(e os.DirEntry) bool { return e.Name() == volume.MarkerName }) {
		w.keep(dir.Name(), "it is the root of a volume, and holds its data")
		return false
	}
	empty = true
	for _, e := range entries {
		path := filepath.Join(dir.Name(), e.Name())
		switch {
		case path == filepath.Join(w.root, embedded) && e.IsDir():
			w.keep(path, "the locks of volumes without --endpoints are kept there; remove it when none is mounted any more")
		case !e.IsDir():
			w.keep(path, "it is none of lockfs's")
		case w.remove(dir, e.Name(), path):
			continue
		}
		empty = false
	}
	return empty
}

// remove removes a directory that is empty or contains only empty directories.
func (w *walk) remove(parent *os.File, name, path string) bool {
	fd, err := unix.Openat2(int(parent.Fd()), name, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH,
	})
	if err == unix.EXDEV {
		w.keep(path, "something is mounted there by now")
		return false
	}
	if err != nil {
		w.keep(path, err.Error())
		return false
	}
	dir := os.NewFile(uintptr(fd), path)
	defer dir.Close()
	if !w.below(dir) {
		return false
	}
	if err := w.rmdir(dir, int(parent.Fd()), name); err != nil {
		w.keep(path, err.Error())
		return false
	}
	w.report("removed " + path)
	return true
}
