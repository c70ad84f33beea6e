package fs

import (
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// cacheTimeout is how long the kernel may use an attribute or a name without asking again.
const cacheTimeout = time.Second

// shownIno is the number by which a view shows an inode. The view is one file system for programs: they
// take two directories or links of one number for the same one. A file system that is mounted below the
// root, or a subvolume of btrfs, has numbers of its own. An overlay numbers directories throughout.
func (b backing) shownIno(dev, ino uint64) uint64 {
	if b.overlaid || dev == b.device.Load() {
		return ino
	}
	return ino ^ dev<<32 // device numbers have 32 bits
}

func (b backing) setAttr(out *fuse.Attr, st *unix.Stat_t) {
	*out = fuse.Attr{
		Ino:       b.shownIno(st.Dev, st.Ino),
		Size:      uint64(st.Size),
		Blocks:    uint64(st.Blocks),
		Atime:     uint64(st.Atim.Sec),
		Mtime:     uint64(st.Mtim.Sec),
		Ctime:     uint64(st.Ctim.Sec),
		Atimensec: uint32(st.Atim.Nsec),
		Mtimensec: uint32(st.Mtim.Nsec),
		Ctimensec: uint32(st.Ctim.Nsec),
		Mode:      st.Mode,
		Nlink:     uint32(st.Nlink),
		Owner:     fuse.Owner{Uid: st.Uid, Gid: st.Gid},
		Rdev:      uint32(st.Rdev),
		Blksize:   uint32(st.Blksize),
	}
}

// GetAttr answers fstat and stat.
func (f *FS) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	return f.replyAttr(n, out)
}

// Statx answers only statx for the time of birth; for all else the kernel sends GetAttr.
func (f *FS) Statx(_ <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	var stx unix.Statx_t
	err := f.with(n, func(fd int) error {
		return statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BASIC_STATS|unix.STATX_BTIME, &stx)
	})
	if err != nil {
		return f.failed(n, err)
	}
	n.tell(&unix.Stat_t{Size: int64(stx.Size), Mtim: unix.Timespec{Sec: stx.Mtime.Sec, Nsec: int64(stx.Mtime.Nsec)}})
	out.FromStatx(&stx)
	out.Ino = f.backing.shownIno(unix.Mkdev(stx.Dev_major, stx.Dev_minor), stx.Ino)
	out.SetTimeout(cacheTimeout)
	return fuse.OK
}

// askedAnew asks for a directory's old attributes, and reports whether they may have changed.
func (f *files) askedAnew(n *node) bool {
	return n.dir && !f.backing.isLocal(n.inode.dev) && n.askIfOld() == nil
}

func (f *files) replyAttr(n *node, out *fuse.AttrOut) fuse.Status {
	f.askedAnew(n)
	var st unix.Stat_t
	if err := f.with(n, func(fd int) error { return fstat(fd, &st) }); err != nil {
		return f.failed(n, err)
	}
	n.tell(&st)
	f.backing.setAttr(&out.Attr, &st)
	out.SetTimeout(cacheTimeout)
	return fuse.OK
}
