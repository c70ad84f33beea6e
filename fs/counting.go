package fs

import "github.com/hanwen/go-fuse/v2/fuse"

// counting receives the kernel's requests, lets them into the volume, and counts them.
type counting struct{ *FS }

// admit answers a request by do, inside the volume's gate, with a buffer of size bytes.
func (c counting) admit(r request, cancel <-chan struct{}, in *fuse.InHeader, size int, do func() fuse.Status) fuse.Status {
	return c.admitAs(guest{memory: waiterBytes(in.Length, size)}, r, cancel, in, do)
}

func (c counting) admitAs(who guest, r request, cancel <-chan struct{}, in *fuse.InHeader, do func() fuse.Status) fuse.Status {
	c.calls.arrives(in)
	s := stale
	if err := c.gates.volume.enter(in, who, cancel, nil); err != nil {
		s = errno(err)
	} else {
		defer c.gates.volume.leave(in.Unique)
		switch {
		case c.calls.deadly(in):
			s = fuse.EIO
		case !c.visits.wasAnswered(in):
			s = do()
		}
	}
	c.calls.again(in).over() // if do has not called again: the former call's locks are not needed any more
	c.calls.answer(in, s, 0)
	if s != handedOn { // a request that is handed on comes once more
		c.calls.ended(in)
	}
	return c.count(r, s)
}

func (c counting) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.admit(requestGetAttr, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.GetAttr(cancel, in, out) })
}

func (c counting) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return message(in) }, func() fuse.Status {
		return c.admit(requestSetAttr, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.SetAttr(cancel, in, out) })
	})
}

func (c counting) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	return c.admit(requestStatx, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Statx(cancel, in, out) })
}

func (c counting) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return c.admit(requestStatFs, cancel, in, 0, func() fuse.Status { return c.FS.StatFs(cancel, in, out) })
}

func (c counting) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return c.admit(requestLookup, cancel, in, 0, func() fuse.Status { return c.FS.Lookup(cancel, in, name, out) })
}

func (c counting) Readlink(cancel <-chan struct{}, in *fuse.InHeader) (v []byte, s fuse.Status) {
	s = c.admit(requestReadlink, cancel, in, 0, func() (s fuse.Status) { v, s = c.FS.Readlink(cancel, in); return s })
	return v, s
}

func (c counting) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.admit(requestMknod, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Mknod(cancel, in, name, out) })
}

func (c counting) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.admit(requestMkdir, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Mkdir(cancel, in, name, out) })
}

func (c counting) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return c.admit(requestSymlink, cancel, in, 0, func() fuse.Status { return c.FS.Symlink(cancel, in, target, name, out) })
}

func (c counting) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return message(in, name) }, func() fuse.Status {
		return c.admit(requestLink, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Link(cancel, in, name, out) })
	})
}

func (c counting) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return c.kernel.trying(cancel, in, func() []byte { return message(in, name) }, func() fuse.Status {
		return c.admit(requestUnlink, cancel, in, 0, func() fuse.Status { return c.FS.Unlink(cancel, in, name) })
	})
}

func (c counting) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return c.kernel.trying(cancel, in, func() []byte { return message(in, name) }, func() fuse.Status {
		return c.admit(requestRmdir, cancel, in, 0, func() fuse.Status { return c.FS.Rmdir(cancel, in, name) })
	})
}

func (c counting) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return renaming(in, oldName, newName) }, func() fuse.Status {
		return c.admit(requestRename, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Rename(cancel, in, oldName, newName) })
	})
}

func (c counting) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return message(in, name) }, func() fuse.Status {
		return c.admit(requestCreate, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Create(cancel, in, name, out) })
	})
}

func (c counting) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return c.admit(requestTmpfile, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Tmpfile(cancel, in, out) })
}

func (c counting) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.admit(requestOpen, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Open(cancel, in, out) })
}

func (c counting) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (v fuse.ReadResult, s fuse.Status) {
	s = c.admit(requestRead, cancel, &in.InHeader, len(buf), func() (s fuse.Status) { v, s = c.FS.Read(cancel, in, buf); return s })
	return v, s
}

func (c counting) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (v uint32, s fuse.Status) {
	// The kernel loses the pages whose WRITE is refused. It sends background at a time.
	who := guest{memory: waiterBytes(in.InHeader.Length, 0), insists: in.WriteFlags&fuse.WRITE_CACHE != 0}
	s = c.admitAs(who, requestWrite, cancel, &in.InHeader, func() (s fuse.Status) {
		v, s = c.FS.Write(cancel, in, data)
		c.calls.answer(&in.InHeader, s, v)
		return s
	})
	return v, s
}

func (c counting) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return c.admit(requestFallocate, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Fallocate(cancel, in) })
}

func (c counting) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (v uint32, s fuse.Status) {
	s = c.admit(requestCopyFileRange, cancel, &in.InHeader, 0, func() (s fuse.Status) { v, s = c.FS.CopyFileRange(cancel, in); return s })
	return v, s
}

func (c counting) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return c.admit(requestLseek, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Lseek(cancel, in, out) })
}

func (c counting) GetLk(cancel <-chan struct{}, in *fuse.LkIn, out *fuse.LkOut) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return message(in) }, func() fuse.Status {
		return c.admit(requestGetLk, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.GetLk(cancel, in, out) })
	})
}

func (c counting) SetLk(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return c.kernel.trying(cancel, &in.InHeader, func() []byte { return message(in) }, func() fuse.Status {
		return c.admit(requestSetLk, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.SetLk(cancel, in) })
	})
}

func (c counting) SetLkw(cancel <-chan struct{}, in *fuse.LkIn) fuse.Status {
	return c.admit(requestSetLk, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.SetLkw(cancel, in) })
}

func (c counting) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	c.calls.arrives(&in.InHeader)
	s := c.FS.Flush(cancel, in)
	c.calls.answer(&in.InHeader, s, 0)
	return c.count(requestFlush, s)
}

func (c counting) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return c.admit(requestFsync, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Fsync(cancel, in) })
}

func (c counting) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	c.FS.Release(cancel, in)
	c.count(requestRelease, fuse.OK)
}

func (c counting) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	return c.admit(requestIoctl, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.Ioctl(cancel, in, inbuf, out, outbuf) })
}

func (c counting) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (v uint32, s fuse.Status) {
	s = c.admit(requestGetXAttr, cancel, in, len(dest), func() (s fuse.Status) { v, s = c.FS.GetXAttr(cancel, in, attr, dest); return s })
	return v, s
}

func (c counting) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dest []byte) (v uint32, s fuse.Status) {
	s = c.admit(requestListXAttr, cancel, in, len(dest), func() (s fuse.Status) { v, s = c.FS.ListXAttr(cancel, in, dest); return s })
	return v, s
}

func (c counting) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return c.admit(requestSetXAttr, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.SetXAttr(cancel, in, attr, data) })
}

func (c counting) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	return c.admit(requestRemoveXAttr, cancel, in, 0, func() fuse.Status { return c.FS.RemoveXAttr(cancel, in, attr) })
}

func (c counting) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.admit(requestOpenDir, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.OpenDir(cancel, in, out) })
}

func (c counting) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.admit(requestReadDir, cancel, &in.InHeader, int(in.Size), func() fuse.Status { return c.FS.ReadDir(cancel, in, out) })
}

func (c counting) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.admit(requestReadDirPlus, cancel, &in.InHeader, int(in.Size), func() fuse.Status { return c.FS.ReadDirPlus(cancel, in, out) })
}

func (c counting) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return c.admit(requestFsyncDir, cancel, &in.InHeader, 0, func() fuse.Status { return c.FS.FsyncDir(cancel, in) })
}

func (c counting) ReleaseDir(in *fuse.ReleaseIn) {
	c.FS.ReleaseDir(in)
	c.count(requestReleaseDir, fuse.OK)
}
