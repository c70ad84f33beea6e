package fs

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"golang.org/x/sys/unix"
)

// A local file system does not reuse a file's inode number while we have a descriptor of it. The
// server of a network volume knows of no descriptor: after another machine has removed a file,
// the next file or directory may have its number (ADR 0026).

// inode identifies a file of the backing.
type inode struct {
	dev, ino   uint64
	generation uint64 // differs between files that have one number after the other
}

// stat is what is known of a file.
type stat struct {
	unix.Stat_t
	generation uint64
	certain    bool // no other file will ever have the number and the generation
}

func inodeOf(st *stat) inode { return inode{st.Dev, st.Ino, st.generation} }

func (b backing) stat(fd int, how asking) (st stat, err error) {
	if b.local || how == asUsual { // which takes less time
		err = byDescriptor(settled(func() error { return unix.Fstat(fd, &st.Stat_t) }))
	}
	if err == nil && how != asUsual && !b.isLocal(st.Dev) {
		st.Stat_t, err = attributes(fd, "", how)
	}
	if err == nil {
		if st.certain = b.overlaid || b.isLocal(st.Dev); !st.certain {
			st.tellApart(fd)
		}
	}
	return st, err
}

// byDescriptor is the error of a request by descriptor. It has no name that could be missing: a
// FUSE client's ENOENT means ESTALE, as NFS says it. Another client has removed the file.
func byDescriptor(err error) error {
	if err == unix.ENOENT {
		return unix.ESTALE
	}
	return err
}

// settled asks for what a descriptor is, and asks again if the volume's client answers EBADFD.
// GlusterFS does so for a file that another program of its machine is opening or closing. A
// millisecond later it had the answer each time.
func settled(ask func() error) (err error) {
	for range 50 {
		if err = ask(); err != unix.EBADFD {
			return err
		}
		time.Sleep(time.Millisecond)
	}
	return err
}

func (b backing) statAt(dirFD int, name string, how asking) (st stat, err error) {
	if b.local {
		if err = unix.Fstatat(dirFD, name, &st.Stat_t, unix.AT_SYMLINK_NOFOLLOW); err != nil || b.isLocal(st.Dev) {
			st.certain = true
			return st, err
		}
	}
	fd, st, err := b.lookAt(dirFD, name, how)
	if err == nil {
		unix.Close(fd)
	}
	return st, err
}

// tellApart sets the generation, without a request to the server: from the file handle, by which
// a server knows the file, or else from the time of birth. The file's type counts as well.
func (st *stat) tellApart(fd int) {
	h := fnv.New64a()
	h.Write([]byte{byte(st.Mode & unix.S_IFMT >> 8)})
	var stx unix.Statx_t
	if handle, err := fileHandle(fd); err == nil {
		h.Write(handle)
		st.certain = true
	} else if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_BTIME, &stx) == nil && stx.Mask&unix.STATX_BTIME != 0 {
		h.Write(binary.NativeEndian.AppendUint64(nil, uint64(stx.Btime.Sec)))
		h.Write(binary.NativeEndian.AppendUint32(nil, stx.Btime.Nsec))
		st.certain = true
	}
	st.generation = h.Sum64()
}

// fileHandle returns the handle by which this kernel would export the file. A file system that
// cannot be exported may have a handle for comparisons (Linux 6.5).
func fileHandle(fd int) ([]byte, error) {
	handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH)
	if err == unix.EOPNOTSUPP {
		handle, _, err = unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH|handleForID)
	}
	if err != nil { // without a handle, its Bytes panics
		return nil, err
	}
	return handle.Bytes(), nil
}

// handleForID asks for a handle for comparisons.
const handleForID = 0x200 // AT_HANDLE_FID
