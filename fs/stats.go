package fs

import (
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

type request uint8

const (
	requestGetAttr request = iota
	requestSetAttr
	requestStatx
	requestStatFs
	requestLookup
	requestReadlink
	requestMknod
	requestMkdir
	requestSymlink
	requestLink
	requestUnlink
	requestRmdir
	requestRename
	requestCreate
	requestTmpfile
	requestOpen
	requestRead
	requestWrite
	requestFallocate
	requestCopyFileRange
	requestLseek
	requestGetLk
	requestSetLk
	requestFlush
	requestFsync
	requestRelease
	requestIoctl
	requestGetXAttr
	requestListXAttr
	requestSetXAttr
	requestRemoveXAttr
	requestOpenDir
	requestReadDir
	requestReadDirPlus
	requestFsyncDir
	requestReleaseDir
	requestKinds
)

var requestNames = [requestKinds]string{
	requestGetAttr:       "getattr",
	requestSetAttr:       "setattr",
	requestStatx:         "statx",
	requestStatFs:        "statfs",
	requestLookup:        "lookup",
	requestReadlink:      "readlink",
	requestMknod:         "mknod",
	requestMkdir:         "mkdir",
	requestSymlink:       "symlink",
	requestLink:          "link",
	requestUnlink:        "unlink",
	requestRmdir:         "rmdir",
	requestRename:        "rename",
	requestCreate:        "create",
	requestTmpfile:       "tmpfile",
	requestOpen:          "open",
	requestRead:          "read",
	requestWrite:         "write",
	requestFallocate:     "fallocate",
	requestCopyFileRange: "copy_file_range",
	requestLseek:         "lseek",
	requestGetLk:         "getlk",
	requestSetLk:         "setlk",
	requestFlush:         "flush",
	requestFsync:         "fsync",
	requestRelease:       "release",
	requestIoctl:         "ioctl",
	requestGetXAttr:      "getxattr",
	requestListXAttr:     "listxattr",
	requestSetXAttr:      "setxattr",
	requestRemoveXAttr:   "removexattr",
	requestOpenDir:       "opendir",
	requestReadDir:       "readdir",
	requestReadDirPlus:   "readdirplus",
	requestFsyncDir:      "fsyncdir",
	requestReleaseDir:    "releasedir",
}

// result groups answers by what an operator would do.
type result uint8

const (
	resultOK          result = iota
	resultContended          // another owner has the lock
	resultStale              // the kernel looks again, unseen by programs
	resultInterrupted        // by a signal
	resultUnavailable        // the lock service does not answer
	resultIO                 // the lock was lost, or the volume fails
	resultFull               // the volume is full, or the user's quota
	resultExhausted          // out of memory or descriptors
	resultRefused            // all others: the program's own problem
	resultKinds
)

var resultNames = [resultKinds]string{
	resultOK:          "ok",
	resultContended:   "contended",
	resultStale:       "stale",
	resultInterrupted: "interrupted",
	resultUnavailable: "unavailable",
	resultIO:          "io_error",
	resultFull:        "full",
	resultExhausted:   "exhausted",
	resultRefused:     "refused",
}

func resultOf(s fuse.Status) result {
	switch unix.Errno(s) {
	case 0:
		return resultOK
	case unix.EBUSY, unix.EAGAIN, unix.EDEADLK:
		return resultContended
	case unix.ESTALE:
		return resultStale
	case unix.EINTR:
		return resultInterrupted
	case unix.ENOLCK:
		return resultUnavailable
	case unix.EIO:
		return resultIO
	case unix.ENOSPC, unix.EDQUOT:
		return resultFull
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM:
		return resultExhausted
	}
	return resultRefused
}

// counters cost each request one atomic addition.
type counters [requestKinds][resultKinds]atomic.Uint64

func (f *FS) count(r request, s fuse.Status) fuse.Status {
	f.counts[r][resultOf(s)].Add(1)
	if !s.Ok() {
		f.doubt(s)
	}
	return s
}

// RequestCount is how many requests of one kind had one result.
type RequestCount struct {
	Request, Result string
	Count           uint64
}

// Stats is a view's counts and present state.
type Stats struct {
	Requests []RequestCount // except zeros
	Inodes   int            // known to the kernel; each takes a descriptor
	Limit    int            // of Inodes, from which the kernel is asked to forget some: what other views leave, and at least a share
	Open     int            // files
	UnderWay int            // requests in the volume
	Waiting  int            // requests for the volume
}

// Stats returns the present state.
func (f *FS) Stats() Stats {
	s := Stats{Limit: f.nodes.pool.limitOf(f.nodes), Inodes: f.nodes.len(), Open: f.handles.len()}
	s.UnderWay, s.Waiting = f.gates.volume.load()
	for r := range f.counts {
		for o := range f.counts[r] {
			if n := f.counts[r][o].Load(); n > 0 {
				s.Requests = append(s.Requests, RequestCount{requestNames[r], resultNames[o], n})
			}
		}
	}
	return s
}
