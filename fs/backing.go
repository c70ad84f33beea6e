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

type backing struct {
	root   int            // O_PATH
	inode  inode          // when it was opened
	device *atomic.Uint64 // of the present root: see remount.go
	kind
}

// kind is what is known of a file system and its client.
type kind struct {
	local          bool // only this machine can write to it
	overlaid       bool // an overlay: the first write to a file changes its handle
	renamesRemoved bool // the client renames a file that is removed while open: letgo.go
	revalidates    bool // an open gets the file's attributes from the server
	learnsSize     bool // an open for write may show the client a new size while it keeps the old bytes
	wholePages     bool // the client may write a whole page for a few bytes of it: see ofRanges
	believesBytes  bool // after an open the client may use cached bytes
	readsAhead     bool // the client may give what it has read ahead by a descriptor to later reads of it
	believesNames  bool // while the client believes a directory, it may take a name for absent
}

var (
	nfsKind = kind{renamesRemoved: true, revalidates: true, learnsSize: true, wholePages: true, believesBytes: true, believesNames: true}
	// A FUSE client's kernel does not infer from a directory's attributes that a name is absent.
	fuseKind  = kind{believesBytes: true, readsAhead: true}
	otherKind = kind{believesNames: true}
	// What is mounted below SOURCE can be of any kind, which can change.
	nestedKind = kind{renamesRemoved: true, learnsSize: true, wholePages: true, believesBytes: true, readsAhead: true, believesNames: true}
)

func kindOfType(fsType int64) kind {
	switch fsType {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return kind{local: true}
	case unix.OVERLAYFS_SUPER_MAGIC:
		return kind{overlaid: true, believesNames: true}
	case unix.NFS_SUPER_MAGIC:
		return nfsKind
	case unix.FUSE_SUPER_MAGIC:
		return fuseKind
	}
	return otherKind
}

func (b backing) on(dev uint64) kind {
	if b.overlaid || dev == b.device.Load() { // an overlay's files have several device numbers
		return b.kind
	}
	return nestedKind
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
	b.kind = kindOfType(int64(fs.Type))
	root, err := b.stat(fd, asUsual)
	if err != nil {
		unix.Close(fd)
		return backing{}, fmt.Errorf("stat %s: %w", source, err)
	}
	b.inode = inodeOf(&root)
	return b, nil
}

// isLocal: other file systems may be mounted below the root.
func (b backing) isLocal(dev uint64) bool { return b.local && dev == b.device.Load() }

// pathFlags open an inode without doing anything to it.
const pathFlags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC

// procPath is a path of a descriptor's inode, whatever its names are.
func procPath(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// ownDescriptors is /proc/self/fd: an open relative to it is faster.
func ownDescriptors() (int, error) {
	if fd := ownDescriptorsFD.Load(); fd != 0 {
		return int(fd), nil
	}
	fd, err := unix.Open("/proc/self/fd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil && !ownDescriptorsFD.CompareAndSwap(0, int64(fd)) {
		unix.Close(fd)
		return ownDescriptors()
	}
	return fd, err // a later call may get a descriptor
}

var ownDescriptorsFD atomic.Int64 // 0: not opened yet

// reopen opens an O_PATH descriptor's inode for I/O. A network volume then revalidates its cache.
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

// opened returns the present attributes of a file just opened, and makes the volume's client drop
// cached bytes. A FUSE client might keep them. So does NFS while this machine has the file open
// for write, even with a lost lock: the client takes every change for its own.
func (b backing) opened(fd int, dev uint64) (st stat, err error) {
	on, how := b.on(dev), anew
	if on.local || on.revalidates {
		how = asUsual
	}
	if st, err = b.stat(fd, how); err == nil && on.believesBytes {
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // dirty pages stay
	}
	return st, err
}

// pathOf opens the inode of fd as an O_PATH descriptor; a local one by name, which is faster.
func (b backing) pathOf(fd int, i inode, dirFD int, name string) (int, error) {
	if !b.isLocal(i.dev) {
		return reopen(fd, unix.O_PATH)
	}
	path, st, err := b.lookOnce(dirFD, name, unasked)
	if err == nil && inodeOf(&st) == i {
		return path, nil
	}
	if err == nil {
		unix.Close(path)
	}
	return reopen(fd, unix.O_PATH)
}

// look is lookAt without names cached for longer than cacheTimeout, and without cached absences.
func (b backing) look(d dirName) (fd int, st stat, err error) {
	local := b.isLocal(d.dir.inode.dev)
	if !local {
		if err := d.dir.askIfOld(); err != nil {
			return -1, st, err
		}
	}
	fd, st, err = b.lookAt(d.dir.fd, d.name, asUsual)
	// A client that renames an open file before replacing it removes the name for a moment.
	if err == unix.ENOENT && !local && (!b.on(d.dir.inode.dev).believesNames || ask(d.dir.fd) == nil) {
		fd, st, err = b.lookAt(d.dir.fd, d.name, asUsual)
	}
	return fd, st, err
}

// Concurrent requests ask too: they must not use older names.
func (n *node) askIfOld() error {
	now := time.Now().UnixNano()
	last := n.asked.Load()
	if now-last < int64(cacheTimeout) {
		return nil
	}
	if err := ask(n.fd); err != nil {
		return err
	}
	n.asked.CompareAndSwap(last, now)
	return nil
}

// lookTries limits repeated looks while others replace the name.
const lookTries = 10

func (b backing) lookAt(dirFD int, name string, how asking) (fd int, st stat, err error) {
	fd, st, err = b.lookOnce(dirFD, name, how)
	// Another node has removed or replaced it.
	for tries := 1; err == unix.ESTALE && tries < lookTries && ask(dirFD) == nil; tries++ {
		fd, st, err = b.lookOnce(dirFD, name, how)
	}
	return fd, st, err
}

// isPath reports whether a name is the whole path of a relocated node. Its directories are not proved
// when the directory of the name is: that is the root.
func isPath(name string) bool { return strings.Contains(name, "/") }

func (b backing) lookOnce(dirFD int, name string, how asking) (fd int, st stat, err error) {
	if isPath(name) { // by a symbolic link the file has the name, but not the lock of its path
		fd, st, err = b.resolve(name, how)
		if err == unix.ELOOP || err == unix.ENOTDIR {
			err = unix.ENOENT
		}
		return fd, st, err
	}
	fd, err = ignoringEINTR(func() (int, error) { return unix.Openat(dirFD, name, pathFlags, 0) })
	if err != nil {
		return -1, st, err
	}
	st, err = b.stat(fd, how)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR && !b.isLocal(st.Dev) && isUnmounted(fd) {
		unix.Close(fd)
		if fd, err = mount(dirFD, name); err != nil {
			return -1, st, err
		}
		st, err = b.stat(fd, how)
	}
	if err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// isUnmounted reports whether NFS mounts a file system here at the first use, which O_PATH is not.
func isUnmounted(fd int) bool {
	var stx unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, 0, &stx)
	return err == nil && stx.Attributes&unix.STATX_ATTR_AUTOMOUNT != 0
}

func mount(dirFD int, name string) (int, error) {
	return ignoringEINTR(func() (int, error) { return unix.Openat(dirFD, name, pathFlags|unix.O_DIRECTORY, 0) })
}

// resolve opens the inode of path, below the root and through no symbolic link; "" is the root.
func (b backing) resolve(path string, how asking) (fd int, st stat, err error) {
	if fd, err = b.open(path); err != nil {
		return -1, st, err
	}
	if st, err = b.stat(fd, how); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

func (b backing) open(path string) (fd int, err error) {
	err = unix.EXDEV
	if b.local {
		fd, err = beneath(b.root, cmp.Or(path, "."), unix.RESOLVE_NO_XDEV)
	}
	if err == unix.EXDEV || err == unix.ENAMETOOLONG { // a mount, or too long for one call
		return b.openAsking(path)
	}
	return fd, err
}

// openAsking asks for each directory of path: a network client may believe names for a minute.
func (b backing) openAsking(path string) (fd int, err error) {
	if path == "" {
		return beneath(b.root, ".", 0)
	}
	fd = b.root
	for name := range strings.SplitSeq(path, "/") {
		dir := fd
		fd, err = b.step(dir, name)
		if dir != b.root {
			unix.Close(dir)
		}
		if err != nil {
			return -1, err
		}
	}
	return fd, nil
}

func (b backing) step(dir int, name string) (fd int, err error) {
	if err = ask(dir); err != nil {
		return -1, err
	}
	if fd, err = beneath(dir, name, 0); err == nil && isUnmounted(fd) {
		unix.Close(fd)
		return mount(dir, name)
	}
	return fd, err
}

// statNow returns the attributes of a name as the volume has them.
func (b backing) statNow(d dirName) (st stat, err error) {
	if !d.dir.enter() {
		return st, unix.ESTALE
	}
	defer d.dir.leave()
	return b.statAt(d.dir.fd, d.name, anew)
}

// bears reports whether d is a name of file i now; with an error that is unknown.
func (b backing) bears(i inode, d dirName) (bool, error) {
	if !d.dir.enter() {
		return false, unix.ESTALE
	}
	defer d.dir.leave()
	if !b.isLocal(d.dir.inode.dev) { // else it may believe an old name
		if err := ask(d.dir.fd); err != nil {
			return false, err
		}
	}
	st, err := b.statAt(d.dir.fd, d.name, unasked)
	switch {
	case err == unix.ENOENT:
		return false, nil
	case err != nil:
		return false, err
	case st.Dev == i.dev && st.Ino == i.ino && inodeOf(&st) != i:
		return false, unix.ESTALE // its number was used again, or its server identifies it by name
	}
	return inodeOf(&st) == i, nil
}

// asking says where a stat gets attributes from. Type and number are right in any case.
type asking int

const (
	unasked asking = unix.AT_STATX_DONT_SYNC    // nobody: they may be old
	asUsual asking = unix.AT_STATX_SYNC_AS_STAT // the volume, if the client's are too old
	anew    asking = unix.AT_STATX_FORCE_SYNC   // the volume
)

// ask: if a directory has changed on the server, a network client drops its cached names.
func ask(fd int) error {
	_, err := attributes(fd, "", anew)
	return err
}

// attributes returns those of name in a directory; "": of the descriptor itself.
func attributes(dirFD int, name string, how asking) (st unix.Stat_t, err error) {
	var stx unix.Statx_t
	err = statx(dirFD, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|int(how), unix.STATX_BASIC_STATS, &stx)
	if name == "" {
		err = byDescriptor(err)
	}
	set(&st.Dev, unix.Mkdev(stx.Dev_major, stx.Dev_minor))
	set(&st.Ino, stx.Ino)
	set(&st.Nlink, uint64(stx.Nlink))
	set(&st.Mode, uint64(stx.Mode))
	set(&st.Uid, uint64(stx.Uid))
	set(&st.Gid, uint64(stx.Gid))
	set(&st.Rdev, unix.Mkdev(stx.Rdev_major, stx.Rdev_minor))
	set(&st.Size, stx.Size)
	set(&st.Blksize, uint64(stx.Blksize))
	set(&st.Blocks, stx.Blocks)
	st.Atim = unix.Timespec{Sec: stx.Atime.Sec, Nsec: int64(stx.Atime.Nsec)}
	st.Mtim = unix.Timespec{Sec: stx.Mtime.Sec, Nsec: int64(stx.Mtime.Nsec)}
	st.Ctim = unix.Timespec{Sec: stx.Ctime.Sec, Nsec: int64(stx.Ctime.Nsec)}
	return st, err
}

// set converts a field of statx to stat's, whose type depends on the machine.
func set[T uint64 | int64 | uint32 | int32](field *T, value uint64) { *field = T(value) }

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
