package fs

import (
	"bytes"
	"encoding/binary"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
)

const dirBuffer = 64 << 10

type dirHandle struct {
	fh       uint64
	node     *node
	reserved reservation
	record   *journal.Part // see record.go
	opened   uint64        // the request that has opened it

	mu   sync.Mutex
	fd   int              // -1: closed. GUARDED_BY(mu)
	buf  *[dirBuffer]byte // nil: it is not being listed. GUARDED_BY(mu)
	rest []byte           // of buf: read, not yet sent. GUARDED_BY(mu)
	next uint64           // the backing's offset of the first entry of rest. GUARDED_BY(mu)
}

// list gives the directory a buffer. ENOMEM: its payer has its share of the memory for buffers.
func (d *dirHandle) list(memory *budget) error {
	if d.buf != nil {
		return nil
	}
	if !memory.take(d.reserved.payer, dirBuffer) {
		return unix.ENOMEM
	}
	d.buf = dirBuffers.Get().(*[dirBuffer]byte)
	return nil
}

// listed ends list.
func (d *dirHandle) listed(memory *budget) {
	if d.buf != nil {
		memory.give(d.reserved.payer, dirBuffer)
		dirBuffers.Put(d.buf)
		d.buf, d.rest = nil, nil
	}
}

func (d *dirHandle) close(memory *budget) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.record.Delete(recordDir, d.fh)
	unix.Close(d.fd)
	d.fd = -1
	d.listed(memory)
	d.reserved.release()
}

// dirBuffers are free buffers: clearing a new one takes longer than most directories are open.
var dirBuffers = sync.Pool{New: func() any { return new([dirBuffer]byte) }}

type dirEntry struct {
	ino  uint64
	next uint64 // offset of the next entry
	typ  uint8
	name string
	size int // in the buffer
}

// OpenDir answers opendir.
func (f *FS) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if d := f.calls.dir(&in.InHeader); d != nil {
		out.Fh = d.fh
		return fuse.OK
	}
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	v := f.visits.come(in.Pid, number(&in.InHeader), in.NodeId)
	s := f.openDir(n, &v, in, out)
	f.visits.leave(v, s)
	return s
}

// openDir opens a directory. A program with a descriptor of it lists it wherever it is.
func (f *FS) openDir(n *node, v *visit, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if f.lostName(n) && v.maySend() {
		return stale
	}
	reserved, s := f.reserve(&in.InHeader)
	if !s.Ok() {
		return s
	}
	defer reserved.release()
	fd, err := f.openAs(&in.InHeader, n.fd, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return f.failed(n, err)
	}
	d := &dirHandle{node: n, reserved: reserved.move(), fd: fd, record: f.record, opened: number(&in.InHeader)}
	d.fh, _ = f.dirs.add(d) // the table is drained when no program waits any more
	d.note()
	out.Fh = d.fh
	return fuse.OK
}

// ReleaseDir answers closedir.
func (f *FS) ReleaseDir(in *fuse.ReleaseIn) {
	if d := f.dirs.remove(in.Fh); d != nil {
		defer f.gates.closing.closes(&in.InHeader)()
		d.close(f.nodes.pool.memory)
	}
}

// FsyncDir answers fsync of a directory.
func (f *FS) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	d := f.dirs.get(in.Fh)
	if d == nil {
		return ended
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return errno(unix.Fsync(d.fd))
}

// ReadDir answers getdents.
func (f *FS) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDir(in, func(_ *node, e *dirEntry) bool { return out.AddDirEntry(e.fuse()) })
}

// ReadDirPlus answers getdents with attributes, which saves the kernel's lookups.
func (f *FS) ReadDirPlus(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	return f.readDir(in, func(dir *node, e *dirEntry) bool {
		entry := out.AddDirLookupEntry(e.fuse())
		if entry == nil {
			return false
		}
		// Once the node limit is reached, the rest is listed without attributes.
		if e.name == "." || e.name == ".." || f.nodes.pool.crowded() {
			return true
		}
		// An entry that has gone is listed without attributes.
		_ = f.enter(dir, e.name, entry)
		return true
	})
}

func (f *FS) readDir(in *fuse.ReadIn, add func(*node, *dirEntry) bool) fuse.Status {
	d := f.dirs.get(in.Fh)
	if d == nil {
		return ended
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fd < 0 { // RELEASEDIR overtook
		return ended
	}
	if err := d.list(f.nodes.pool.memory); err != nil {
		return errno(err)
	}
	if in.Offset != d.next {
		if _, err := unix.Seek(d.fd, int64(in.Offset), unix.SEEK_SET); err != nil {
			return errno(err)
		}
		d.rest, d.next = nil, in.Offset
	}
	for added := false; ; added = true {
		if len(d.rest) == 0 {
			n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(d.fd, d.buf[:]) })
			if err != nil && added {
				// The kernel must hear of the counted lookups. It asks for more, and gets the
				// error then.
				return fuse.OK
			}
			if err != nil {
				return errno(err)
			}
			if n == 0 {
				d.listed(f.nodes.pool.memory)
				return fuse.OK
			}
			d.rest = d.buf[:n]
		}
		e := parseEntry(d.rest)
		e.ino = f.backing.shownIno(d.node.inode.dev, e.ino)
		if !f.hidden(d.node, e.name) && !add(d.node, &e) {
			return fuse.OK // the reply is full
		}
		d.rest, d.next = d.rest[e.size:], e.next
	}
}

func hasEntries(dir *node, name string) bool {
	fd, err := unix.Openat(dir.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	var buf [1024]byte
	for {
		// While a signal is pending, it returns one entry: the runtime sends signals.
		n, err := ignoringEINTR(func() (int, error) { return unix.Getdents(fd, buf[:]) })
		if err != nil || n == 0 {
			return false
		}
		for rest := buf[:n]; len(rest) > 0; {
			e := parseEntry(rest)
			if e.name != "." && e.name != ".." {
				return true
			}
			rest = rest[e.size:]
		}
	}
}

// notEmpty is EPERM if one of names is immutable, as on the backing, else ENOTEMPTY.
func notEmpty(names ...dirName) fuse.Status {
	for _, n := range names {
		for _, name := range []string{"", n.name} { // the directory, what is in it
			var st unix.Statx_t
			err := unix.Statx(n.dir.fd, name, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW, 0, &st)
			if err == nil && st.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0 {
				return fuse.EPERM
			}
		}
	}
	return fuse.Status(unix.ENOTEMPTY)
}

func parseEntry(buf []byte) dirEntry {
	size := int(binary.NativeEndian.Uint16(buf[16:]))
	name := buf[19:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return dirEntry{
		ino:  binary.NativeEndian.Uint64(buf),
		next: binary.NativeEndian.Uint64(buf[8:]),
		typ:  buf[18],
		name: string(name),
		size: size,
	}
}

func (e *dirEntry) fuse() fuse.DirEntry {
	return fuse.DirEntry{Name: e.name, Ino: e.ino, Off: e.next, Mode: uint32(e.typ) << 12}
}
