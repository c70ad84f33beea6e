package fs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// prove resolves path again now that it is locked. It returns the inode if it
// is still the one the kernel named, else ESTALE: while we waited the holder
// may have replaced the file, and another mount renamed a parent. Whoever opens the
// file gets its attributes by that, and need not ask for them here.
func (f *files) prove(n *node, path string, how asking) (fd int, st stat, err error) {
	fd, st, err = f.backing.resolve(path, how)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ESTALE, unix.ENAMETOOLONG:
		return -1, st, unix.ESTALE
	default:
		return -1, st, err
	}
	if inodeOf(&st) != n.inode || n.gone.Load() {
		unix.Close(fd)
		return -1, st, unix.ESTALE
	}
	return fd, st, nil
}

// proveDir proves that a directory is at path: the very one of the lock that was
// taken for a name in it. Its node may be known by another meanwhile. how is anew if
// the names in it are going to be looked at.
func (f *files) proveDir(dir *node, path string, how asking) error {
	if dir.id == rootID && f.backing.local {
		return nil
	}
	fd, _, err := f.prove(dir, path, how)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// mendTries is how often a request follows a file or a directory that moves
// while it is being locked.
const mendTries = 3

// mend finds a directory that has moved where it is now, and reports whether it
// had. A program may stand in it, and name files from there for ever without
// looking up anything above.
func (f *files) mend(dir *node) bool {
	if dir.id == rootID {
		return false
	}
	path, err := f.nodes.path(dir)
	if err == nil {
		err = f.proveDir(dir, path, anew)
	}
	return err == unix.ESTALE && f.relocate(dir) == nil
}

// mendSince is mend for a directory that was taken to be at path; another request
// may have mended it since.
func (f *files) mendSince(dir *node, path string) bool {
	now, err := f.nodes.path(dir)
	return err == nil && now != path || f.mend(dir)
}

// mendAbove is mend for the directory that a file was last looked up in.
func (f *files) mendAbove(n *node) bool {
	dir := f.nodes.nameOf(n).dir
	return dir != nil && f.mend(dir)
}

// relocate makes a node known by where it is now.
func (f *files) relocate(n *node) error {
	path, err := f.currentPath(n)
	if err != nil {
		return err
	}
	f.nodes.relocated(n, path)
	return nil
}

// currentPath asks the backing's kernel where an inode is now. It is a hint,
// to be proved like any other.
func (f *files) currentPath(n *node) (string, error) {
	if !n.enter() {
		return "", unix.ESTALE
	}
	defer n.leave()
	var st unix.Stat_t
	var path string
	err := f.with(n, func(fd int) (err error) {
		if err = unix.Fstat(fd, &st); err == nil {
			path, err = os.Readlink(procPath(fd))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if st.Nlink == 0 {
		return "", unix.ESTALE // the path it had, with a suffix, may be another's
	}
	root, err := os.Readlink(procPath(f.backing.root))
	if err != nil {
		return "", err
	}
	rel, ok := strings.CutPrefix(path, strings.TrimSuffix(root, "/")+"/")
	if !ok {
		return "", unix.ESTALE
	}
	return filepath.Clean(rel), nil
}

// isNamed reports whether d is, for sure, a name of the file.
func (f *files) isNamed(n *node, d dirName) bool {
	is, err := f.backing.bears(n.inode, d)
	return is && err == nil
}

// trueName returns a name that the file has.
func (f *files) trueName(n *node) (dirName, bool) {
	for _, d := range f.nodes.names(n) {
		if f.isNamed(n, d) {
			return d, true
		}
	}
	if f.relocate(n) != nil {
		return dirName{}, false
	}
	d := f.nodes.nameOf(n)
	return d, f.isNamed(n, d)
}

// lostName reports whether a name that the kernel may mean by n is not n's any more.
func (f *files) lostName(n *node) bool {
	lost := false
	names := f.nodes.names(n)
	for _, d := range f.nodes.believed(n) { // n may be known by where it is now
		if !slices.ContainsFunc(names, d.is) {
			names = append(names, d)
		}
	}
	for _, d := range names {
		if !f.isNamed(n, d) {
			lost = true
			f.nodes.unname(n, d)
		}
	}
	return lost
}

// failed is errno for what was asked of a node. If the volume does not have the file
// any more, its client is made to look up again, once it is asked next, the names that
// led to it: the kernel comes with them.
func (f *files) failed(n *node, err error) fuse.Status {
	if err == unix.ESTALE {
		f.nodes.doubtNames(n)
	}
	return errno(err)
}

// doubtNames has the names that led to a node be asked for.
func (t *nodes) doubtNames(n *node) {
	for range maxDepth {
		if n = t.nameOf(n).dir; n == nil {
			return
		}
		n.asked.Store(0)
	}
}
