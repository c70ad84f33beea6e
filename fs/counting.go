package fs

import "github.com/hanwen/go-fuse/v2/fuse"

// counting is what the kernel's requests go to: an FS that counts them.
type counting struct{ *FS }

func (c counting) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.count(requestGetAttr, c.FS.GetAttr(cancel, in, out))
}

func (c counting) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	return c.count(requestSetAttr, c.FS.SetAttr(cancel, in, out))
}

func (c counting) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	return c.count(requestStatx, c.FS.Statx(cancel, in, out))
}

func (c counting) StatFs(cancel <-chan struct{}, in *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	return c.count(requestStatFs, c.FS.StatFs(cancel, in, out))
}

func (c counting) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return c.count(requestLookup, c.FS.Lookup(cancel, in, name, out))
}

func (c counting) Readlink(cancel <-chan struct{}, in *fuse.InHeader) ([]byte, fuse.Status) {
	v, s := c.FS.Readlink(cancel, in)
	return v, c.count(requestReadlink, s)
}

func (c counting) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.count(requestMknod, c.FS.Mknod(cancel, in, name, out))
}

func (c counting) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.count(requestMkdir, c.FS.Mkdir(cancel, in, name, out))
}

func (c counting) Symlink(cancel <-chan struct{}, in *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	return c.count(requestSymlink, c.FS.Symlink(cancel, in, target, name, out))
}

func (c counting) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	return c.count(requestLink, c.FS.Link(cancel, in, name, out))
}

func (c counting) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return c.count(requestUnlink, c.FS.Unlink(cancel, in, name))
}

func (c counting) Rmdir(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return c.count(requestRmdir, c.FS.Rmdir(cancel, in, name))
}

func (c counting) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	return c.count(requestRename, c.FS.Rename(cancel, in, oldName, newName))
}

func (c counting) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return c.count(requestCreate, c.FS.Create(cancel, in, name, out))
}

func (c counting) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	return c.count(requestTmpfile, c.FS.Tmpfile(cancel, in, out))
}

func (c counting) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.count(requestOpen, c.FS.Open(cancel, in, out))
}

func (c counting) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	v, s := c.FS.Read(cancel, in, buf)
	return v, c.count(requestRead, s)
}

func (c counting) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	v, s := c.FS.Write(cancel, in, data)
	return v, c.count(requestWrite, s)
}

func (c counting) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return c.count(requestFallocate, c.FS.Fallocate(cancel, in))
}

func (c counting) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	v, s := c.FS.CopyFileRange(cancel, in)
	return v, c.count(requestCopyFileRange, s)
}

func (c counting) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	return c.count(requestLseek, c.FS.Lseek(cancel, in, out))
}

func (c counting) Flush(cancel <-chan struct{}, in *fuse.FlushIn) fuse.Status {
	return c.count(requestFlush, c.FS.Flush(cancel, in))
}

func (c counting) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return c.count(requestFsync, c.FS.Fsync(cancel, in))
}

func (c counting) Release(cancel <-chan struct{}, in *fuse.ReleaseIn) {
	c.FS.Release(cancel, in)
	c.count(requestRelease, fuse.OK)
}

func (c counting) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, out *fuse.IoctlOut, outbuf []byte) fuse.Status {
	return c.count(requestIoctl, c.FS.Ioctl(cancel, in, inbuf, out, outbuf))
}

func (c counting) GetXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string, dest []byte) (uint32, fuse.Status) {
	v, s := c.FS.GetXAttr(cancel, in, attr, dest)
	return v, c.count(requestGetXAttr, s)
}

func (c counting) ListXAttr(cancel <-chan struct{}, in *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	v, s := c.FS.ListXAttr(cancel, in, dest)
	return v, c.count(requestListXAttr, s)
}

func (c counting) SetXAttr(cancel <-chan struct{}, in *fuse.SetXAttrIn, attr string, data []byte) fuse.Status {
	return c.count(requestSetXAttr, c.FS.SetXAttr(cancel, in, attr, data))
}

func (c counting) RemoveXAttr(cancel <-chan struct{}, in *fuse.InHeader, attr string) fuse.Status {
	return c.count(requestRemoveXAttr, c.FS.RemoveXAttr(cancel, in, attr))
}

func (c counting) OpenDir(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	return c.count(requestOpenDir, c.FS.OpenDir(cancel, in, out))
}

func (c counting) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.count(requestReadDir, c.FS.ReadDir(cancel, in, out))
}

func (c counting) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return c.count(requestReadDirPlus, c.FS.ReadDirPlus(cancel, in, out))
}

func (c counting) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return c.count(requestFsyncDir, c.FS.FsyncDir(cancel, in))
}

func (c counting) ReleaseDir(in *fuse.ReleaseIn) {
	c.FS.ReleaseDir(in)
	c.count(requestReleaseDir, fuse.OK)
}
