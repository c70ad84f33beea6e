package fs

import (
	"encoding/binary"
	"hash/fnv"
	"time"

	"golang.org/x/sys/unix"
)

// A local file system does not reuse the inode number of a file with a descriptor. A network
// volume's server knows of no descriptors: after a removal elsewhere, the next file may get the
// number (ADR 0026).

type inode struct {
	dev, ino   uint64
	generation uint64 // differs between successive files of one number
}

type stat struct {
	unix.Stat_t
	generation uint64
	certain    bool // no other file will ever have this number and generation
}

func inodeOf(st *stat) inode { return inode{st.Dev, st.Ino, st.generation} }

func (b backing) stat(fd int, how asking) (st stat, err error) {
	if b.local || how == asUsual { // which is faster
		err = byDescriptor(fstat(fd, &st.Stat_t))
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

// byDescriptor maps a FUSE client's ENOENT of a descriptor, removed elsewhere, to NFS's ESTALE.
func byDescriptor(err error) error {
	if err == unix.ENOENT {
		return unix.ESTALE
	}
	return err
}

// fstat and statx ask what a file of the volume is.
func fstat(fd int, st *unix.Stat_t) error {
	return pastEBADFD(func() error { return unix.Fstat(fd, st) })
}

func statx(dirFD int, name string, flags, mask int, stx *unix.Statx_t) error {
	return pastEBADFD(func() error { return unix.Statx(dirFD, name, flags, mask, stx) })
}

// GlusterFS asks its server by any open descriptor of the file. It answers EBADFD while another
// program opens or closes that one: for about a millisecond, on a busy machine for longer.
func pastEBADFD(ask func() error) (err error) {
	for wait := time.Millisecond; wait < time.Second/2; wait *= 2 {
		if err = ask(); err != unix.EBADFD {
			return err
		}
		time.Sleep(wait)
	}
	return ask()
}

func (b backing) statAt(dirFD int, name string, how asking) (st stat, err error) {
	if b.local && !isPath(name) {
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

// tellApart asks no server: it takes the file handle, or else the time of birth, and the type.
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

// fileHandle returns the handle for NFS export, or since Linux 6.5 one for comparisons.
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

const handleForID = 0x200 // AT_HANDLE_FID
