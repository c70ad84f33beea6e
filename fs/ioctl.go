package fs

import (
	"encoding/binary"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Commands and flags of linux/fs.h.
const (
	fsIocFSGetXAttr = 0x801c581f // FS_IOC_FSGETXATTR
	fsXAttrSize     = 28         // of its answer, a struct fsxattr

	flagSync      = 0x8 // FS_SYNC_FL and so on
	flagImmutable = 0x10
	flagAppend    = 0x20
	flagNoDump    = 0x40
	flagNoAtime   = 0x80
	flagDirSync   = 0x10000
	flagTopDir    = 0x20000

	// ownersFlags are for a file's owner, and change neither its bytes nor their storage.
	ownersFlags = flagSync | flagNoDump | flagNoAtime | flagDirSync | flagTopDir
	adminsFlags = flagImmutable | flagAppend // those that need CAP_LINUX_IMMUTABLE
)

// Ioctl answers lsattr and chattr. FS_IOC_GETVERSION would need 4 bytes for programs, 8 for the
// kernel.
func (f *FS) Ioctl(cancel <-chan struct{}, in *fuse.IoctlIn, inbuf []byte, _ *fuse.IoctlOut, outbuf []byte) fuse.Status {
	n := f.nodes.get(in.NodeId)
	if n == nil {
		return stale
	}
	arg, size := outbuf, 4
	switch in.Cmd {
	case unix.FS_IOC_GETFLAGS:
	case unix.FS_IOC_SETFLAGS:
		arg = inbuf
	case fsIocFSGetXAttr:
		size = fsXAttrSize
	default:
		return fuse.Status(unix.ENOTTY)
	}
	if len(arg) != size {
		return fuse.EINVAL
	}
	fd := -1
	err := f.with(n, func(path int) (err error) {
		var st unix.Stat_t
		if err = fstat(path, &st); err != nil {
			return err
		}
		if t := st.Mode & unix.S_IFMT; t != unix.S_IFREG && t != unix.S_IFDIR {
			return unix.ENOTTY // unopened: opening a device does things
		}
		fd, err = reopen(path, unix.O_RDONLY)
		return err
	})
	if err != nil {
		return errno(err)
	}
	defer unix.Close(fd)
	if in.Cmd == unix.FS_IOC_SETFLAGS {
		if err := f.mayAlter(n); err != nil {
			return errno(err)
		}
		changed, err := changedFlags(fd, arg)
		if err != nil {
			return errno(err)
		}
		if changed&adminsFlags != 0 { // else the dirty pages of mappings could not be written any more
			if s := f.writeBack(cancel, &in.InHeader, n); !s.Ok() {
				return s
			}
		}
		defer f.dropAttrs(n) // because of the time of change
		return errno(f.as(&in.InHeader, 0, func() error { return ioctl(fd, in.Cmd, arg) }))
	}
	return errno(ioctl(fd, in.Cmd, arg))
}

// changedFlags returns the flags to change. Errors: programs must not change them.
func changedFlags(fd int, wanted []byte) (changed uint32, err error) {
	flags := make([]byte, 4)
	if err := ioctl(fd, unix.FS_IOC_GETFLAGS, flags); err != nil {
		return 0, err
	}
	changed = binary.NativeEndian.Uint32(flags) ^ binary.NativeEndian.Uint32(wanted)
	if changed&^(ownersFlags|adminsFlags) != 0 {
		return 0, unix.EOPNOTSUPP
	}
	return changed, nil
}

func ioctl(fd int, cmd uint32, arg []byte) error {
	if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(cmd), uintptr(unsafe.Pointer(&arg[0]))); e != 0 {
		return e
	}
	return nil
}
