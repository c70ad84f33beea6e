package fs

import (
	"encoding/binary"
	"hash/fnv"

	"golang.org/x/sys/unix"
)

// A local file system gives the number of a file to no other as long as a descriptor
// of ours is open. The server of a network volume knows of no descriptor: when another
// node has removed a file, the next one that is made has its number, or a directory has.

// inode identifies a file of the backing.
type inode struct {
	dev, ino   uint64
	generation uint64 // tells the files apart that have one number after the other
}

// stat is what is known of a file.
type stat struct {
	unix.Stat_t
	generation uint64
	certain    bool // no other file has the number and the generation, ever
}

func inodeOf(st *stat) inode { return inode{st.Dev, st.Ino, st.generation} }

// stat returns what the file of a descriptor is.
func (b backing) stat(fd int, how asking) (st stat, err error) {
	if b.local || how == asUsual { // which takes less time
		err = byDescriptor(unix.Fstat(fd, &st.Stat_t))
	}
	if err == nil && how != asUsual && !b.isLocal(st.Dev) {
		st.Stat_t, err = attributes(fd, "", how)
	}
	if err == nil {
		b.tellApart(fd, &st)
	}
	return st, err
}

// statAt returns what name in a directory is.
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

// tellApart finds a generation by what this machine knows already: it asks no server.
// A file handle is what a server knows a file by. Where there is none, the time of
// birth tells two files apart, if there is one. A directory is no file in any case.
func (b backing) tellApart(fd int, st *stat) {
	if b.overlaid || b.isLocal(st.Dev) {
		st.certain = true
		return
	}
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

// fileHandle returns what the kernel would tell an NFS client of its own. Not every
// file system can be exported; one that cannot may have a handle for comparisons
// (Linux 6.5).
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

// handleForID asks for a handle that need not be of use to open the file.
const handleForID = 0x200 // AT_HANDLE_FID
