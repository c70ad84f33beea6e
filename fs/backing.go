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
	// revalidates: the open of a file gets its attributes from the server.
	revalidates bool
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
	b.kind = kind{overlaid: fs.Type == unix.OVERLAYFS_SUPER_MAGIC, renamesRemoved: fs.Type == unix.NFS_SUPER_MAGIC, revalidates: fs.Type == unix.NFS_SUPER_MAGIC, believesBytes: fs.Type == unix.FUSE_SUPER_MAGIC}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		b.local = true
	}
	root, err := b.stat(fd, asUsual)
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
// now, and has its client read the file's bytes anew: a FUSE client may keep what its
// kernel had, and NFS takes every change for its own while somebody on this machine has
// the file open for write, be it one who has lost his lock.
func (b backing) opened(fd int) (st stat, err error) {
	how := anew
	if b.local || b.revalidates {
		how = asUsual
	}
	if st, err = b.stat(fd, how); err == nil && (b.believesBytes || b.revalidates) {
		_ = unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED) // what is dirty stays
	}
	return st, err
}

// beforeOpen says whom the look at a file asks that is opened next. By the open for write
// alone NFS learns a file's size, and may keep its old bytes: ADR 0031.
func (b backing) beforeOpen() asking {
	if b.revalidates {
		return anew
	}
	return unasked
}

// pathOf opens the inode of fd, i, as an O_PATH descriptor. It most likely still
// is name in a directory, which is quicker than by its number where nobody is asked.
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
	fd, st, err = b.lookAt(d.dir.fd, d.name, asUsual)
	// Also if the directory was asked for just now: a client that gives a file which is
	// open another name before it replaces it takes the name away for a moment. No FUSE
	// client's kernel believes that a name is not there for what its directory is.
	if err == unix.ENOENT && !local && (b.believesBytes || ask(d.dir.fd) == nil) {
		fd, st, err = b.lookAt(d.dir.fd, d.name, asUsual)
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
	if err := ask(n.fd); err != nil {
		return err
	}
	n.asked.CompareAndSwap(last, now)
	return nil
}

// lookTries is how often a look follows a name that others replace meanwhile.
const lookTries = 10

// lookAt opens name in a directory, and says what it is.
func (b backing) lookAt(dirFD int, name string, how asking) (fd int, st stat, err error) {
	fd, st, err = b.lookOnce(dirFD, name, how)
	// It was removed, or replaced, by another node.
	for tries := 1; err == unix.ESTALE && tries < lookTries && ask(dirFD) == nil; tries++ {
		fd, st, err = b.lookOnce(dirFD, name, how)
	}
	return fd, st, err
}

func (b backing) lookOnce(dirFD int, name string, how asking) (fd int, st stat, err error) {
	fd, err = ignoringEINTR(func() (int, error) { return unix.Openat(dirFD, name, pathFlags, 0) })
	if err != nil {
		return -1, st, err
	}
	if st, err = b.stat(fd, how); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// resolve opens the inode that path names now, below the root and through no
// symlink, and asks for its attributes as said. The empty path is the root.
func (b backing) resolve(path string, how asking) (fd int, st stat, err error) {
	err = unix.EXDEV
	if b.local {
		fd, err = beneath(b.root, cmp.Or(path, "."), unix.RESOLVE_NO_XDEV)
	}
	if err == unix.EXDEV || err == unix.ENAMETOOLONG { // a mount, or longer than one call takes
		fd, err = b.resolveAsking(path)
	}
	if err != nil {
		return -1, st, err
	}
	if st, err = b.stat(fd, how); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// resolveAsking does it one step at a time: on a network volume a client believes
// names for as long as the attributes of the directory they are in, a minute
// perhaps, so that it has to be made to ask at each.
func (b backing) resolveAsking(path string) (fd int, err error) {
	if path == "" {
		return beneath(b.root, ".", 0)
	}
	fd = b.root
	for name := range strings.SplitSeq(path, "/") {
		dir := fd
		if err = ask(dir); err == nil {
			fd, err = beneath(dir, name, 0)
		}
		if dir != b.root {
			unix.Close(dir)
		}
		if err != nil {
			return -1, err
		}
	}
	return fd, nil
}

// statNow returns the attributes of name in a directory as the volume has them.
func (b backing) statNow(d dirName) (st stat, err error) {
	if !d.dir.enter() {
		return st, unix.ESTALE
	}
	defer d.dir.leave()
	return b.statAt(d.dir.fd, d.name, anew)
}

// bears reports whether d is a name of the file i now; with an error it is not known.
func (b backing) bears(i inode, d dirName) (bool, error) {
	if !d.dir.enter() {
		return false, unix.ESTALE
	}
	defer d.dir.leave()
	if !b.isLocal(d.dir.inode.dev) { // it may believe the name otherwise
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
		return false, unix.ESTALE // its number was used again, or its server tells it by its name
	}
	return inodeOf(&st) == i, nil
}

// asking says whom a stat asks: the attributes are for the last of these, and what a
// file is for all.
type asking int

const (
	unasked asking = unix.AT_STATX_DONT_SYNC    // nobody: they are as old as may be
	asUsual asking = unix.AT_STATX_SYNC_AS_STAT // the volume, if its client believes its own no longer
	anew    asking = unix.AT_STATX_FORCE_SYNC   // the volume, whatever its client believes
)

// ask makes a network volume's client ask for the attributes of a descriptor. Of a
// directory it believes the names no longer, if they may have changed.
func ask(fd int) error {
	_, err := attributes(fd, "", anew)
	return err
}

// attributes returns those of name in a directory, of the descriptor itself if name is
// empty.
func attributes(dirFD int, name string, how asking) (st unix.Stat_t, err error) {
	var stx unix.Statx_t
	err = unix.Statx(dirFD, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|int(how), unix.STATX_BASIC_STATS, &stx)
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

// set converts a field of statx to that of stat, whose type depends on the machine.
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
