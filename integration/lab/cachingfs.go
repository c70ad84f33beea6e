package lab

import (
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// cachedNode is a file that this client knows. Its id is its inode number.
type cachedNode struct {
	fd    int // O_PATH
	asked atomic.Int64

	// GUARDED_BY(cachingFS.mu)
	lookups uint64
	mine    bool              // this client has removed it
	names   map[string]uint64 // of a directory: those that were looked up in it
}

type cachingFS struct {
	fuse.RawFileSystem // ENOSYS
	server             *fuse.Server
	config             ClientConfig

	mu     sync.Mutex
	nodes  map[uint64]*cachedNode
	dirs   map[uint64][]fuse.DirEntry // open directories
	opened uint64                     // how many directories ever were
	ahead  map[uint64][]byte          // what was read by a descriptor
}

func (c *cachingFS) Init(s *fuse.Server) { c.server = s }

func (c *cachingFS) String() string { return "caching" }

func (c *cachingFS) node(id uint64) *cachedNode {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[id]
}

func (n *cachedNode) path() string { return ProcFD(n.fd) }

// stat asks the volume, which does not know a file that another client removed.
func (c *cachingFS) stat(n *cachedNode) (st unix.Stat_t, err error) {
	if err = unix.Fstat(n.fd, &st); err == nil && st.Nlink == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !n.mine && c.config.Absent {
			err = unix.ENOENT
		} else if !n.mine {
			err = unix.ESTALE
		}
	}
	return st, err
}

func setAttrOf(out *fuse.Attr, st *unix.Stat_t) {
	*out = fuse.Attr{
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks), Mode: st.Mode, Nlink: uint32(st.Nlink), Rdev: uint32(st.Rdev), Blksize: uint32(st.Blksize),
		Atime: uint64(st.Atim.Sec), Atimensec: uint32(st.Atim.Nsec), Mtime: uint64(st.Mtim.Sec), Mtimensec: uint32(st.Mtim.Nsec),
		Ctime: uint64(st.Ctim.Sec), Ctimensec: uint32(st.Ctim.Nsec), Owner: fuse.Owner{Uid: st.Uid, Gid: st.Gid},
	}
}

// enter replies with what name in a directory is.
func (c *cachingFS) enter(dirID uint64, name string, out *fuse.EntryOut) fuse.Status {
	dir := c.node(dirID)
	fd, err := unix.Openat(dir.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fuse.ToStatus(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[st.Ino]
	if n != nil {
		unix.Close(fd)
	} else {
		n = &cachedNode{fd: fd}
		c.nodes[st.Ino] = n
	}
	n.lookups++
	if dir.names == nil {
		dir.names = make(map[string]uint64)
	}
	dir.names[name] = st.Ino
	out.NodeId = st.Ino
	out.SetEntryTimeout(c.config.believes())
	out.SetAttrTimeout(c.config.believes())
	setAttrOf(&out.Attr, numbered(n.path(), st))
	return fuse.OK
}

func (c *cachingFS) Lookup(_ <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return c.enter(in.NodeId, name, out)
}

func (c *cachingFS) Forget(id, lookups uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.nodes[id]
	if n.lookups -= lookups; n.lookups == 0 && id != fuse.FUSE_ROOT_ID {
		unix.Close(n.fd)
		delete(c.nodes, id)
	}
}

// GetAttr comes when the kernel has no attributes, or is not to believe them.
func (c *cachingFS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := c.node(in.NodeId)
	st, err := c.stat(n)
	if err != nil {
		return fuse.ToStatus(err)
	}
	if c.config.Unsure && st.Mode&unix.S_IFMT == unix.S_IFREG && n.asked.Add(1)%2 == 1 {
		return fuse.Status(unix.EBADFD)
	}
	c.recheckNames(in.NodeId, n)
	setAttrOf(&out.Attr, numbered(n.path(), st))
	out.SetTimeout(c.config.believes())
	return fuse.OK
}

// recheckNames makes the kernel forget names that other clients have changed.
func (c *cachingFS) recheckNames(id uint64, dir *cachedNode) {
	c.mu.Lock()
	var changed []string
	for name, ino := range dir.names {
		var st unix.Stat_t
		if unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Ino != ino {
			changed = append(changed, name)
			delete(dir.names, name)
		}
	}
	c.mu.Unlock()
	for _, name := range changed {
		c.server.EntryNotify(id, name)
	}
}

func (c *cachingFS) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := c.node(in.NodeId)
	st, err := c.stat(n)
	if size, ok := in.GetSize(); ok && err == nil {
		err = unix.Truncate(n.path(), int64(size))
	}
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if (setUID || setGID) && err == nil {
		if !setUID {
			uid = st.Uid
		}
		if !setGID {
			gid = st.Gid
		}
		err = unix.Fchownat(n.fd, "", int(uid), int(gid), unix.AT_EMPTY_PATH)
	}
	if mode, ok := in.GetMode(); ok && err == nil {
		err = unix.Chmod(n.path(), mode&07777)
	}
	atime, setA := in.GetATime()
	mtime, setM := in.GetMTime()
	if (setA || setM) && err == nil {
		times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
		if setA {
			times[0] = unix.NsecToTimespec(atime.UnixNano())
		}
		if setM {
			times[1] = unix.NsecToTimespec(mtime.UnixNano())
		}
		err = unix.UtimesNanoAt(unix.AT_FDCWD, n.path(), times, 0)
	}
	if err == nil {
		err = unix.Fstat(n.fd, &st)
	}
	setAttrOf(&out.Attr, numbered(n.path(), st))
	out.SetTimeout(c.config.believes())
	return fuse.ToStatus(err)
}

func (c *cachingFS) make(in *fuse.InHeader, name string, out *fuse.EntryOut, do func(dirFD int) error) fuse.Status {
	dir := c.node(in.NodeId)
	if err := do(dir.fd); err != nil {
		return fuse.ToStatus(err)
	}
	c.reuseFor(dir, name)
	_ = unix.Fchownat(dir.fd, name, int(in.Uid), int(in.Gid), unix.AT_SYMLINK_NOFOLLOW)
	return c.enter(in.NodeId, name, out)
}

func (c *cachingFS) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.make(&in.InHeader, name, out, func(fd int) error { return unix.Mknodat(fd, name, in.Mode, int(in.Rdev)) })
}

func (c *cachingFS) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.make(&in.InHeader, name, out, func(fd int) error { return unix.Mkdirat(fd, name, in.Mode) })
}

func (c *cachingFS) Symlink(_ <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return c.make(in, name, out, func(fd int) error { return unix.Symlinkat(target, fd, name) })
}

func (c *cachingFS) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	n := c.node(in.Oldnodeid)
	if _, err := c.stat(n); err != nil {
		return fuse.ToStatus(err)
	}
	if err := unix.Linkat(unix.AT_FDCWD, n.path(), c.node(in.NodeId).fd, name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return fuse.ToStatus(err)
	}
	return c.enter(in.NodeId, name, out)
}

func (c *cachingFS) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(c.node(in.NodeId).fd, "", buf)
	return buf[:max(n, 0)], fuse.ToStatus(err)
}

// remove does what takes name in a directory away from a file, by this client.
func (c *cachingFS) remove(dir *cachedNode, name string, do func() error) fuse.Status {
	var st unix.Stat_t
	was := unix.Fstatat(dir.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	seen := numbered(dir.path()+"/"+name, st)
	if err := do(); err != nil {
		return fuse.ToStatus(err)
	}
	if was == nil {
		c.free(seen)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.nodes[st.Ino]; was == nil && n != nil {
		n.mine = true
	}
	return fuse.OK
}

func (c *cachingFS) Unlink(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir := c.node(in.NodeId)
	return c.remove(dir, name, func() error { return unix.Unlinkat(dir.fd, name, 0) })
}

func (c *cachingFS) Rmdir(_ <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	dir := c.node(in.NodeId)
	return c.remove(dir, name, func() error { return unix.Unlinkat(dir.fd, name, unix.AT_REMOVEDIR) })
}

func (c *cachingFS) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	fromDir, toDir := c.node(in.NodeId), c.node(in.Newdir)
	rename := func() error { return unix.Renameat2(fromDir.fd, from, toDir.fd, to, uint(in.Flags)) }
	if in.Flags&unix.RENAME_EXCHANGE != 0 {
		if err := rename(); err != nil {
			return fuse.ToStatus(err)
		}
	} else if s := c.remove(toDir, to, rename); !s.Ok() {
		return s
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if toDir.names == nil {
		toDir.names = make(map[string]uint64)
	}
	was := toDir.names[to]
	toDir.names[to] = fromDir.names[from]
	delete(fromDir.names, from)
	if in.Flags&unix.RENAME_EXCHANGE != 0 {
		fromDir.names[from] = was
	}
	return fuse.OK
}

func (c *cachingFS) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	c.config.grace()
	fd := -1
	s := c.make(&in.InHeader, name, &out.EntryOut, func(dir int) (err error) {
		fd, err = unix.Openat(dir, name, int(in.Flags)&^unix.O_APPEND|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_CLOEXEC, in.Mode)
		return err
	})
	if !s.Ok() {
		unix.Close(fd)
	}
	out.Fh = uint64(fd)
	out.OpenFlags = c.config.handleFlags()
	return s
}

// Open revalidates. It does not ask what the file is called.
func (c *cachingFS) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	c.config.grace()
	n := c.node(in.NodeId)
	if !Writable(in.Flags) {
		c.saveElsewhere(n)
	}
	if _, err := c.stat(n); err != nil {
		return fuse.ToStatus(err)
	}
	fd, err := unix.Open(n.path(), int(in.Flags)&^(unix.O_APPEND|unix.O_NOFOLLOW)|unix.O_CLOEXEC, 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	if c.config.Keep {
		out.OpenFlags = fuse.FOPEN_KEEP_CACHE
	} else {
		c.server.InodeNotify(in.NodeId, -1, 0) // the attributes; for want of KEEP_CACHE the pages go as well
	}
	out.Fh = uint64(fd)
	out.OpenFlags |= c.config.handleFlags()
	return fuse.OK
}

// saveElsewhere is what another client does while n is about to be opened.
func (c *cachingFS) saveElsewhere(n *cachedNode) {
	if c.config.Saves == "" {
		return
	}
	var is, named unix.Stat_t
	name := filepath.Join(c.config.Source, "f")
	next, _ := os.ReadDir(c.config.Saves)
	if len(next) > 0 && unix.Fstat(n.fd, &is) == nil && unix.Lstat(name, &named) == nil && is.Ino == named.Ino {
		_ = os.Rename(filepath.Join(c.config.Saves, next[0].Name()), name)
	}
}

func (c *cachingFS) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	if c.config.Ahead {
		data, err := c.readAhead(in)
		return fuse.ReadResultData(data), fuse.ToStatus(err)
	}
	n, err := unix.Pread(int(in.Fh), buf[:in.Size], int64(in.Offset))
	return fuse.ReadResultData(buf[:max(n, 0)]), fuse.ToStatus(err)
}

// readAhead reads the beginning of a file once for each descriptor.
func (c *cachingFS) readAhead(in *fuse.ReadIn) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.ahead[in.Fh]
	if !ok {
		data = make([]byte, 1<<16)
		n, err := unix.Pread(int(in.Fh), data, 0)
		if err != nil {
			return nil, err
		}
		data = data[:n]
		c.ahead[in.Fh] = data
	}
	from, to := min(int(in.Offset), len(data)), min(int(in.Offset)+int(in.Size), len(data))
	return data[from:to], nil
}

func (c *cachingFS) forgetAhead() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.ahead)
}

func (c *cachingFS) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	defer c.forgetAhead()
	n, err := unix.Pwrite(int(in.Fh), data, int64(in.Offset))
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (c *cachingFS) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	off, err := unix.Seek(int(in.Fh), int64(in.Offset), int(in.Whence))
	out.Offset = uint64(off)
	return fuse.ToStatus(err)
}

func (c *cachingFS) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return fuse.ToStatus(unix.Fallocate(int(in.Fh), in.Mode, int64(in.Offset), int64(in.Length)))
}

func (c *cachingFS) Flush(_ <-chan struct{}, _ *fuse.FlushIn) fuse.Status { return fuse.OK }

func (c *cachingFS) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fuse.ToStatus(unix.Fsync(int(in.Fh)))
}

func (c *cachingFS) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	c.mu.Lock()
	delete(c.ahead, in.Fh)
	c.mu.Unlock()
	unix.Close(int(in.Fh))
}

func (c *cachingFS) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	n := c.node(in.NodeId)
	if _, err := c.stat(n); err != nil {
		return fuse.ToStatus(err)
	}
	entries, err := os.ReadDir(n.path())
	if err != nil {
		return fuse.ToStatus(err)
	}
	var list []fuse.DirEntry
	for i, e := range entries {
		if fi, err := e.Info(); err == nil {
			st := fi.Sys().(*syscall.Stat_t)
			list = append(list, fuse.DirEntry{Name: e.Name(), Ino: st.Ino, Mode: st.Mode, Off: uint64(i + 1)})
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened++
	c.dirs[c.opened] = list
	out.Fh = c.opened
	return fuse.OK
}

func (c *cachingFS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.dirs[in.Fh] {
		if e.Off > in.Offset && !out.AddDirEntry(e) {
			break
		}
	}
	return fuse.OK
}

func (c *cachingFS) ReleaseDir(in *fuse.ReleaseIn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.dirs, in.Fh)
}

func (c *cachingFS) FsyncDir(_ <-chan struct{}, _ *fuse.FsyncIn) fuse.Status { return fuse.OK }

func (c *cachingFS) StatFs(_ <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st unix.Statfs_t
	err := unix.Fstatfs(c.node(in.NodeId).fd, &st)
	*out = fuse.StatfsOut{Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail, Files: st.Files, Ffree: st.Ffree, Bsize: uint32(st.Bsize), NameLen: uint32(st.Namelen), Frsize: uint32(st.Frsize)}
	return fuse.ToStatus(err)
}
