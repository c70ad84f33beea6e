package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Tmpfile makes a file without a name, under the lock of its inode. LINK adds the name's lock.
func (f *FS) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	dir := f.nodes.get(in.NodeId)
	if dir == nil {
		return stale
	}
	if h := f.calls.file(&in.InHeader); h != nil {
		return f.createdBefore(h, out)
	}
	reserved, s := f.reserve(&in.InHeader)
	if !s.Ok() {
		return s
	}
	defer reserved.release()
	flags := int(in.Flags)&^dropped | int(in.Flags)&unix.O_EXCL // O_EXCL: it may never be linked
	fd := -1
	err := f.asForMode(in.Mode)(&in.InHeader, in.Umask, func() (err error) {
		fd, err = unix.Openat(dir.fd, ".", flags|unix.O_TMPFILE|unix.O_CLOEXEC, in.Mode&07777)
		return err
	})
	if err != nil {
		return errno(err)
	}
	path, hold := -1, (*lockmgr.Hold)(nil)
	st, err := f.backing.stat(fd, asUsual)
	if err == nil {
		path, err = reopen(fd, unix.O_PATH)
	}
	if err == nil {
		hold, err = f.lockInode(cancel, &in.InHeader, dir, &st.Stat_t)
	}
	if err != nil {
		f.nodes.closer.close(fd, path) // which frees the file
		return errno(err)
	}
	n := f.replyEntry(nil, "", path, &st, &out.EntryOut)
	f.addHold(n, dir, hold)
	h := f.newHandle(n, fd, in.Flags, hold, &reserved)
	return f.reply(h, &in.InHeader, f.cacheFlags(h, in.Flags, &st.Stat_t), &out.OpenOut)
}

func (f *locker) lockInode(cancel <-chan struct{}, in *fuse.InHeader, dir *node, st *unix.Stat_t) (*lockmgr.Hold, error) {
	path, err := f.nodes.pathIn(dir, ".")
	if err != nil {
		return nil, err
	}
	key, err := f.backing.inodeKey(path, st)
	if err != nil {
		return nil, err
	}
	req, err := f.caller(in, nil, f.scope, openOwner)
	if err != nil {
		return nil, err
	}
	req.Keys, req.Wait = []lockmgr.Key{key}, f.nameWait
	return f.acquire(cancel, in, 0, req)
}
