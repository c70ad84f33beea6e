package programs

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// differentialCases are the sequences in which a view once differed from the
// directory below, by what they are about. One with a known difference is
// not right yet, or cannot be, for the reason given.
var differentialCases = map[string]struct {
	known string
	steps []step
}{
	"chown by an owner outside of the group": {steps: []step{
		{Op: "open", Path: "a", FD: 1, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o666},
		{Op: "fchmod", FD: 1, Mode: 0o2666},
		{Op: "fchown", FD: 1, Off: 1001, Off2: 2000},
		{Op: "fchmod", FD: 1, Mode: 0o2666},
		{Who: 2, Op: "chown", Path: "a", Off: 1001, Off2: 2000},
		{Op: "fstat", FD: 1},
	}},
	"chown of nothing": {steps: []step{
		{Op: "open", Path: "a", FD: 1, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o6777},
		{Op: "chown", Path: "a", Off: -1, Off2: -1},
		{Op: "fstat", FD: 1},
		{Who: 2, Op: "open", Path: "b", FD: 1, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o2666},
		{Who: 2, Op: "fchown", FD: 1, Off: -1, Off2: -1},
		{Who: 2, Op: "fstat", FD: 1},
	}},
	"attributes of root are not listed for others": {steps: []step{
		{Op: "open", Path: "a", FD: 1, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o666},
		{Op: "setxattr", Path: "a", Path2: "trusted.t", Data: "01"},
		{Op: "setxattr", Path: "a", Path2: "user.a", Data: "01"},
		{Op: "listxattr", Path: "a"},
		{Who: 1, Op: "listxattr", Path: "a"},
	}},
	// The removal of the directory has let its lock go, and the service hears of it.
	"a file where a directory just was": {steps: slices.Repeat([]step{
		{Op: "mkdir", Path: "d", Mode: 0o777},
		{Op: "unlink", Path: "d", Flags: unix.AT_REMOVEDIR},
		{Op: "open", Path: "d", FD: 1, Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK, Mode: 0o666},
		{Op: "unlink", Path: "d"},
		{Op: "close", FD: 1},
	}, 20)},
	"a file in a directory that was just renamed": {steps: slices.Concat([]step{
		{Op: "mkdir", Path: "d", Mode: 0o777},
		{Op: "mknod", Path: "d/a", Mode: 0o666},
	}, slices.Repeat([]step{
		{Op: "rename", Path: "d", Path2: "e"},
		{Op: "open", Path: "e/a", FD: 1, Flags: unix.O_WRONLY | unix.O_NONBLOCK},
		{Op: "close", FD: 1},
		{Op: "stat", Path: "e/a"},
		{Op: "list", Path: "e"},
		{Op: "rename", Path: "e", Path2: "d"},
	}, 10))},
	"a file that had a long name is gone": {steps: []step{
		{Op: "open", FD: 1, Path: strings.Repeat("n", 255), Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o666},
		{Op: "unlink", Path: strings.Repeat("n", 255)},
		{Op: "reopen", FD: 2, FD2: 1, Flags: unix.O_RDONLY | unix.O_TRUNC},
	}},
	"a time that is set stays": {steps: []step{
		{Op: "open", FD: 1, Path: "a", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o666},
		{Op: "ftruncate", FD: 1, Off: 4096},
		{Op: "mmap", FD: 1, Flags: unix.MAP_SHARED, Mode: unix.PROT_READ | unix.PROT_WRITE, N: 4096},
		{Op: "store", FD: 1, N: 1, Data: "i"},
		{Op: "futimens", FD: 1, Off: 1000, Off2: 2000},
		{Op: "msync", FD: 1, Flags: unix.MS_SYNC},
		{Op: "stat", Path: "a", Flags: unix.AT_STATX_FORCE_SYNC},
	}},
	"a store behind the end": {known: "FUSE's kernel does not clear the rest of the last page when a file grows, and nobody below can", steps: []step{
		{Op: "open", FD: 1, Path: "a", Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o666},
		{Op: "write", FD: 1, N: 1, Data: "j"},
		{Op: "mmap", FD: 1, Flags: unix.MAP_SHARED, Mode: unix.PROT_READ | unix.PROT_WRITE, N: 4096},
		{Op: "store anywhere", FD: 1, N: 2532, Data: "n"},
		{Op: "truncate", Path: "a", Off: 10000},
		{Op: "pread", FD: 1, N: 10000},
	}},
	"chown of nothing by a stranger": {steps: []step{
		{Op: "open", Path: "a", FD: 1, Flags: unix.O_RDONLY | unix.O_CREAT, Mode: 0o6777},
		{Who: 2, Op: "chown", Path: "a", Off: -1, Off2: -1},
		{Op: "fstat", FD: 1},
	}},
}

// refusedRightly reports whether what a view said is a refusal that
// docs/SEMANTICS.md names. The other side does not make the step then.
func refusedRightly(s step, view string) bool {
	if view != "EBUSY" {
		return false
	}
	switch s.Op {
	case "rename", "unlink":
		return true // rule 9: of a directory while a file below it is open for write
	case "reopen":
		return true // of a file without a name, which cannot be locked by one
	}
	return false
}

// differsRightly reports whether two answers may differ.
func differsRightly(s step, view, plain string) bool {
	// By a stranger it changes nothing: the kernel asks the view for what it
	// asks before a stranger's write, so that the view cannot refuse it.
	nothing := s.Off == -1 && s.Off2 == -1
	return nothing && (s.Op == "chown" || s.Op == "fchown") && view == "0" && plain == "EPERM"
}
