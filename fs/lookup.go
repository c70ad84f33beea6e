package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/volume"
)

// librarysName is a name in the root that go-fuse answers for itself: LOOKUP finds an empty file. A file
// that got the name, which only RENAME could give, would be out of reach.
const librarysName = ".go-fuse-epoll-hack"

// hidden reports whether a name is the volume's marker, or the library's.
func (f *files) hidden(dir *node, name string) bool {
	return dir.id == rootID && (volume.IsMarker(name) || name == librarysName)
}

// Lookup finds a name. An absence is not cached: another node may create the name at any time.
func (f *FS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if f.hidden(dir, name) {
		return fuse.ENOENT
	}
	f.nodes.pool.awaitRoom(cancel)
	asked := f.visits.looks(in.Pid)
	var s fuse.Status
	for range enterTries {
		found := uint64(0)
		if s = f.enter(dir, name, out); s.Ok() {
			found = out.NodeId
		}
		sent := f.visits.looked(in.Pid, asked, dirName{dir, name}, found)
		if !s.Ok() || !sent || f.readyForOpen(in, f.nodes.get(found), out.Mode) {
			return s
		}
		f.nodes.forget(found, 1) // it was replaced meanwhile
	}
	return stale
}

// readyForOpen prepares for the OPEN of what a second try has found. false: it has been replaced
// since. An ESTALE of that OPEN would be the program's.
func (f *FS) readyForOpen(in *fuse.InHeader, n *node, mode uint32) bool {
	if n == nil || f.letsGo(n) && !f.keepForOpen(n) {
		return false
	}
	flags, reads := f.visits.reading(in.Pid)
	if !reads || mode&unix.S_IFMT != unix.S_IFREG || f.backing.isLocal(n.inode.dev) {
		return true
	}
	// Only a descriptor keeps a server's file from going: no lock keeps its name.
	fd, err := f.openNode(n, in, flags)
	if err == nil {
		if _, err = f.backing.opened(fd, n.inode.dev); err != nil { // GlusterFS opens it only now
			unix.Close(fd)
		}
	}
	if err != nil {
		return f.failed(n, err) != stale
	}
	f.visits.keep(in.Pid, &fileToRead{node: n.id, flags: flags, uid: in.Uid, gid: in.Gid, fd: fd})
	return true
}

// replyEntry takes fd over.
func (f *files) replyEntry(dir *node, name string, fd int, st *stat, out *fuse.EntryOut) *node {
	n := f.nodes.learn(dir, name, fd, st)
	f.entry(n, &st.Stat_t, out)
	return n
}

// entry replies with a node.
func (f *files) entry(n *node, st *unix.Stat_t, out *fuse.EntryOut) {
	n.tell(st)
	out.NodeId = n.id
	out.SetEntryTimeout(cacheTimeout)
	out.SetAttrTimeout(cacheTimeout)
	f.backing.setAttr(&out.Attr, st)
}

// Forget says that the kernel has dropped a node.
func (f *FS) Forget(id, lookups uint64) { f.nodes.forget(id, lookups) }

// Readlink answers readlink.
func (f *FS) Readlink(_ <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return nil, stale
	}
	buf := make([]byte, unix.PathMax)
	size := 0
	err := f.with(n, func(fd int) (err error) {
		size, err = unix.Readlinkat(fd, "", buf)
		return err
	})
	if err != nil {
		return nil, f.failed(n, err)
	}
	return buf[:size], fuse.OK
}

// StatFs answers statfs.
func (f *FS) StatFs(_ <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	var st unix.Statfs_t
	if err := f.with(n, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return errno(err)
	}
	*out = fuse.StatfsOut{
		Blocks: st.Blocks, Bfree: st.Bfree, Bavail: st.Bavail,
		Files: st.Files, Ffree: st.Ffree,
		Bsize: uint32(st.Bsize), NameLen: uint32(st.Namelen), Frsize: uint32(st.Frsize),
	}
	f.withinQuota(n, out)
	return fuse.OK
}
