package fs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// under is a granted lock that keeps a path what it is.
type under struct {
	hold *lockmgr.Hold // nil: no lock
	key  lockmgr.Key
}

// prove opens the locked path. ESTALE: the file was replaced, or a directory was renamed.
func (f *files) prove(n *node, path string, how asking, lock under) (fd int, st stat, err error) {
	fd, err = f.resolve(n, path, lock)
	if err == nil {
		if st, err = f.backing.stat(fd, how); err != nil {
			unix.Close(fd)
		}
	}
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

// resolve opens what path names. It should be n.
func (f *files) resolve(n *node, path string, lock under) (fd int, err error) {
	if n.dir {
		return f.reach(n, path, lock)
	}
	i := strings.LastIndexByte(path, '/')
	if i < 0 || f.backing.local {
		return f.backing.open(path)
	}
	dir, err := f.reach(f.nodes.nameOf(n).dir, path[:i], lock)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return f.backing.step(dir, path[i+1:])
}

// place is where a directory was found, under a lock of something in it.
type place struct {
	path  string
	token int64 // of the lock
	asked time.Time
}

// reach opens the directory that path names. It should be dir, which may be nil. The volume is not
// asked if it was asked less than cacheTimeout ago and no directory above was locked since: then no
// view has renamed one. cacheTimeout bounds how long a rename is missed that the volume makes late,
// after its client gave up (ADR 0031).
func (f *files) reach(dir *node, path string, lock under) (fd int, err error) {
	if dir != nil && !dir.gone.Load() && lock.hold != nil {
		p := dir.place.Load()
		if p != nil && p.path == path && time.Since(p.asked) < cacheTimeout && lock.hold.Undisturbed(p.token, lock.key) && dir.enter() {
			defer dir.leave()
			return unix.FcntlInt(uintptr(dir.fd), unix.F_DUPFD_CLOEXEC, 0)
		}
	}
	asked := time.Now()
	if fd, err = f.backing.open(path); err != nil || f.backing.local || lock.hold == nil {
		return fd, err
	}
	st, err := f.backing.stat(fd, unasked)
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	token := lock.hold.Token(lock.key)
	if found := f.nodes.find(inodeOf(&st)); found != nil && token != 0 {
		found.place.Store(&place{path: path, token: token, asked: asked})
	}
	return fd, nil
}

// proveDir proves path, the one in the lock's key. Before its names are looked at, how is anew.
func (f *files) proveDir(dir *node, path string, how asking, lock under) error {
	if dir.id == rootID && f.backing.local {
		return nil
	}
	fd, _, err := f.prove(dir, path, how, lock)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// mendTries is how often a request tries again when its file or directory moves while it is being
// locked.
const mendTries = 3

// mend reports whether a directory has moved, and notes where it is now. The kernel might never
// find out: a program whose working directory it is does not look up the directories above.
func (f *files) mend(dir *node) bool {
	if dir.id == rootID {
		return false
	}
	path, err := f.nodes.path(dir)
	if err == nil {
		err = f.proveDir(dir, path, anew, under{})
	}
	return err == unix.ESTALE && f.relocate(dir) == nil
}

// mendSince also reports true if another request has found the directory elsewhere than at path.
func (f *files) mendSince(dir *node, path string) bool {
	now, err := f.nodes.path(dir)
	return err == nil && now != path || f.mend(dir)
}

func (f *files) mendAbove(n *node) bool {
	dir := f.nodes.nameOf(n).dir
	return dir != nil && f.mend(dir)
}

func (f *files) relocate(n *node) error {
	path, err := f.currentPath(n)
	if err != nil {
		return err
	}
	f.nodes.relocated(n, path)
	return nil
}

// currentPath asks the kernel for the path of a node's descriptor: a hint, which must be proved.
func (f *files) currentPath(n *node) (string, error) {
	if !n.enter() {
		return "", unix.ESTALE
	}
	defer n.leave()
	var st unix.Stat_t
	var path string
	err := f.with(n, func(fd int) (err error) {
		if err = fstat(fd, &st); err == nil {
			path, err = os.Readlink(procPath(fd))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	if st.Nlink == 0 {
		return "", unix.ESTALE // the kernel adds " (deleted)", which another file's name may end with
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

func (f *files) isNamed(n *node, d dirName) bool {
	is, err := f.backing.bears(n.inode, d)
	return is && err == nil
}

// trueName returns a name that the file has now, if it can be found.
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

// lostName reports whether the kernel may mean n by a name that n has lost.
func (f *files) lostName(n *node) bool {
	lost := false
	names := f.nodes.names(n)
	for _, d := range f.nodes.believed(n) { // names may have only the present name
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

// failed: after ESTALE the kernel's lookup must not use the volume client's cache.
func (f *files) failed(n *node, err error) fuse.Status {
	if err == unix.ESTALE {
		f.nodes.doubtNames(n)
	}
	return errno(err)
}

// doubtNames makes the next lookups on the way to a node ask the volume.
func (t *nodes) doubtNames(n *node) {
	for range maxDepth {
		if n = t.nameOf(n).dir; n == nil {
			return
		}
		n.asked.Store(0)
	}
}
