package fs

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// backing is the shared directory.
type backing struct {
	root   int            // O_PATH
	inode  inode          // when it was opened
	device *atomic.Uint64 // of the root now: see remount.go
	kind
}

// kind is what is known of a file system and of its client.
type kind struct {
	local bool // no other machine can write to it
	// overlaid: it is an overlay, where the first write to a file changes its handle.
	overlaid bool
	// renamesRemoved: its client keeps a file that is removed while somebody has a
	// descriptor of it, under another name. See letgo.go.
	renamesRemoved bool
	// believesBytes: its client may go on with a file's bytes and attributes when it
	// opens the file.
	believesBytes bool
}

func openBacking(source string) (backing, error) {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return backing{}, fmt.Errorf("open %s: %w", source, err)
	}
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := cmp.Or(unix.Fstat(fd, &st), unix.Fstatfs(fd, &fs)); err != nil {
		unix.Close(fd)
		return backing{}, fmt.Errorf("stat %s: %w", source, err)
	}
	b := backing{root: fd, inode: inode{dev: st.Dev}, device: new(atomic.Uint64)}
	b.device.Store(st.Dev)
	b.kind = kind{overlaid: fs.Type == unix.OVERLAYFS_SUPER_MAGIC, renamesRemoved: fs.Type == unix.NFS_SUPER_MAGIC, believesBytes: fs.Type == unix.FUSE_SUPER_MAGIC}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		b.local = true
	}
	root, err := b.stat(fd)
	if err != nil {
		unix.Close(fd)
		return backing{}, fmt.Errorf("stat %s: %w", source, err)
	}
	b.inode = inodeOf(&root)
	return b, nil
}

// isLocal reports whether this kernel knows what is on dev without asking anybody.
// Other file systems may be mounted below the root.
func (b backing) isLocal(dev uint64) bool { return b.local && dev == b.device.Load() }

// pathFlags open an inode without doing anything to it.
const pathFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// procPath names the inode of a descriptor, whatever became of its path.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// ownDescriptors is /proc/self/fd: from there a descriptor is opened in less time.
func ownDescriptors() (int, error) {
	if fd := ownDescriptorsFD.Load(); fd != 0 {
		return int(fd), nil
	}
	fd, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil && !ownDescriptorsFD.CompareAndSwap(0, int64(fd)) {
		unix.Close(fd)
		return ownDescriptors()
	}
	return fd, err // which another time may find a descriptor
}

var ownDescriptorsFD atomic.Int64 // 0: not opened yet

// reopen opens the inode of an O_PATH descriptor for I/O. On a network volume
// it is this that revalidates what the node has cached of the file.
func reopen(fd int, flags int) (int, error) {
	dir, err := ownDescriptors()
	if err != nil {
		return -1, err
	}
	file, err := ignoringEINTR(func() (int, error) {
		return unix.Openat(dir, strconv.Itoa(fd), flags|unix.O_CLOEXEC, 0)
	})
	return file, byDescriptor(err)
}

// opened returns the attributes of a file that was just opened, as the volume has them
// now, and has its client read the file's bytes anew. NFS and the kernel's CephFS do so
// by the open itself; a FUSE client may keep what its kernel had, or let it be.
func (b backing) opened(fd int) (st unix.Stat_t, err error) {
	if b.believesBytes {
		if err = ask(fd, ""); err != nil {
			return st, err
		}
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // what is dirty stays
	}
	return st, byDescriptor(unix.Fstat(fd, &st))
}

// pathOf opens the inode of fd, i, as an O_PATH descriptor. It most likely still
// is name in a directory, which is quicker than by its number.
func (b backing) pathOf(fd int, i inode, dirFD int, name string) (int, error) {
	path, st, err := b.lookOnce(dirFD, name)
	if err == nil && inodeOf(&st) == i {
		return path, nil
	}
	if err == nil {
		unix.Close(path)
	}
	return reopen(fd, unix.O_PATH)
}

// look is lookAt for a program that uses the name. What the volume's client believes
// of the names in a directory is older than cacheTimeout in no case, and that one is
// not there in none.
func (b backing) look(d dirName) (fd int, st stat, err error) {
	local := b.isLocal(d.dir.inode.dev)
	if !local {
		if err := d.dir.askIfOld(); err != nil {
			return -1, st, err
		}
	}
	fd, st, err = b.lookAt(d.dir.fd, d.name)
	// Also if the directory was asked for just now: a client that gives a file which is
	// open another name before it replaces it takes the name away for a moment.
	if err == unix.ENOENT && !local && ask(d.dir.fd, "") == nil {
		fd, st, err = b.lookAt(d.dir.fd, d.name)
	}
	return fd, st, err
}

// askIfOld asks for the names in a directory again, if that was long ago. Who comes while
// it is asked goes by no older names: he asks, too.
func (n *node) askIfOld() error {
	now := time.Now().UnixNano()
	last := n.asked.Load()
	if now-last < int64(cacheTimeout) {
		return nil
	}
	if err := ask(n.fd, ""); err != nil {
		return err
	}
	n.asked.CompareAndSwap(last, now)
	return nil
}

// lookTries is how often a look follows a name that others replace meanwhile.
const lookTries = 10

// lookAt opens name in a directory, and says what it is.
func (b backing) lookAt(dirFD int, name string) (fd int, st stat, err error) {
	fd, st, err = b.lookOnce(dirFD, name)
	// It was removed, or replaced, by another node.
	for tries := 1; err == unix.ESTALE && tries < lookTries && ask(dirFD, "") == nil; tries++ {
		fd, st, err = b.lookOnce(dirFD, name)
	}
	return fd, st, err
}

func (b backing) lookOnce(dirFD int, name string) (fd int, st stat, err error) {
	fd, err = ignoringEINTR(func() (int, error) { return unix.Openat(dirFD, name, pathFlags, 0) })
	if err != nil {
		return -1, st, err
	}
	if st, err = b.stat(fd); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// resolve opens the inode that path names now, below the root and through no
// symlink. The empty path is the root.
func (b backing) resolve(path string) (fd int, st stat, err error) {
	if path == "" {
		path = "."
	}
	err = unix.EXDEV
	if b.local {
		fd, err = beneath(b.root, path, unix.RESOLVE_NO_XDEV)
	}
	if err == unix.EXDEV || err == unix.ENAMETOOLONG { // a mount, or longer than one call takes
		fd, err = b.resolveAsking(path)
	}
	if err != nil {
		return -1, st, err
	}
	if st, err = b.stat(fd); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// resolveAsking does it one step at a time: on a network volume a client believes
// names for as long as the attributes of the directory they are in, a minute
// perhaps, so that it has to be made to ask at each.
func (b backing) resolveAsking(path string) (fd int, err error) {
	fd = b.root
	for name := range strings.SplitSeq(path, "/") {
		dir := fd
		if err = ask(dir, ""); err == nil {
			fd, err = beneath(dir, name, 0)
		}
		if dir != b.root {
			unix.Close(dir)
		}
		if err != nil {
			return -1, err
		}
	}
	if err = ask(fd, ""); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// statNow returns the attributes of name in a directory as the volume has them.
func (b backing) statNow(d dirName) (st stat, err error) {
	if !d.dir.enter() {
		return st, unix.ESTALE
	}
	defer d.dir.leave()
	if !b.isLocal(d.dir.inode.dev) {
		// ENOENT can be of the file that had the name, which another one has by now.
		if err := ask(d.dir.fd, d.name); err != nil && err != unix.ENOENT {
			return st, err
		}
	}
	return b.statAt(d.dir.fd, d.name)
}

// bears reports whether d is a name of the file i now; with an error it is not known.
func (b backing) bears(i inode, d dirName) (bool, error) {
	if !d.dir.enter() {
		return false, unix.ESTALE
	}
	defer d.dir.leave()
	if !b.isLocal(d.dir.inode.dev) { // it may believe the name otherwise
		if err := ask(d.dir.fd, ""); err != nil {
			return false, err
		}
	}
	st, err := b.statAt(d.dir.fd, d.name)
	switch {
	case err == unix.ENOENT:
		return false, nil
	case err != nil:
		return false, err
	case st.Dev == i.dev && st.Ino == i.ino && inodeOf(&st) != i:
		return false, unix.ESTALE // its number was used again, or its server tells it by its name
	}
	return inodeOf(&st) == i, nil
}

// ask makes a network volume's client ask for the attributes of name in a
// directory, of the directory itself if name is empty, whatever it believes.
func ask(dirFD int, name string) error {
	var st unix.Statx_t
	err := unix.Statx(dirFD, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	if name == "" {
		err = byDescriptor(err)
	}
	return err
}

func beneath(dirFD int, path string, resolve uint64) (int, error) {
	how := unix.OpenHow{
		Flags:   pathFlags,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolve,
	}
	for {
		fd, err := unix.Openat2(dirFD, path, &how)
		// EAGAIN: a rename elsewhere kept the kernel from proving 'beneath'.
		if err != unix.EINTR && err != unix.EAGAIN {
			return fd, err
		}
	}
}

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if err != unix.EINTR {
			return n, err
		}
	}
}
