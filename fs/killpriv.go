package fs

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// killPriv clears the set-id bits as a change by in's caller does, who has no
// CAP_FSETID. The backing's kernel does it for its callers, but its caller is
// root; file capabilities it clears for root too.
func (f *FS) killPriv(n *node, fd int, in *fuse.InHeader) error {
	mode, drop, err := setID(fd, in)
	if err != nil || drop == 0 {
		return err
	}
	return f.setMode(n, fd, mode&^drop)
}

// killPrivUnlessCapable is killPriv for requests that do not say whether the
// caller has CAP_FSETID: FALLOCATE and COPY_FILE_RANGE.
func (f *FS) killPrivUnlessCapable(n *node, fd int, in *fuse.InHeader) error {
	mode, drop, err := setID(fd, in)
	if err != nil || drop == 0 || hasCapability(in, unix.CAP_FSETID) {
		return err
	}
	return f.setMode(n, fd, mode&^drop)
}

// setMode sets the mode of an open file, which the kernel does not expect.
func (f *FS) setMode(n *node, fd int, mode uint32) error {
	err := unix.Fchmod(fd, mode&07777)
	f.server.InodeNotify(n.id, -1, 0)
	return err
}

// setID returns a file's mode, and which set-id bits of it the caller's
// change clears.
func setID(fd int, in *fuse.InHeader) (mode, drop uint32, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, err
	}
	drop = st.Mode & unix.S_ISUID
	// Without the execute bit set-group-id once meant mandatory locking, and
	// stays for members of the group.
	if st.Mode&unix.S_ISGID != 0 && (st.Mode&unix.S_IXGRP != 0 || !inGroup(in, st.Gid)) {
		drop |= unix.S_ISGID
	}
	return st.Mode, drop, nil
}

// killSetGID clears the set-group-id bit alone, as chmod and setfacl by a
// user who is not in the file's group do.
func killSetGID(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil || st.Mode&unix.S_ISGID == 0 {
		return err
	}
	return unix.Chmod(path, (st.Mode&^unix.S_ISGID)&07777)
}

// inGroup reports whether a request's caller is a member of gid.
func inGroup(in *fuse.InHeader, gid uint32) bool {
	return in.Gid == gid || slices.Contains(callerGroups(in), gid)
}

// callerGroups returns the supplementary groups of a request's caller.
func callerGroups(in *fuse.InHeader) []uint32 {
	var groups []uint32
	for _, g := range bytes.Fields(statusField(in, "Groups")) {
		if id, err := strconv.ParseUint(string(g), 10, 32); err == nil {
			groups = append(groups, uint32(id))
		}
	}
	return groups
}

// hasCapability reports whether a request's caller has an effective capability.
// One that is root only in a user namespace of its own has none here.
func hasCapability(in *fuse.InHeader, capability int) bool {
	set, err := strconv.ParseUint(string(statusField(in, "CapEff")), 16, 64)
	return err == nil && set&(1<<capability) != 0 && inOurUserNamespace(in)
}

func inOurUserNamespace(in *fuse.InHeader) bool {
	ours, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		return false
	}
	theirs, err := os.Readlink("/proc/" + strconv.FormatUint(uint64(in.Pid), 10) + "/ns/user")
	return err == nil && theirs == ours
}

// statusField reads one line of the calling thread's /proc status; nothing if
// there is no caller, which then has no privileges either.
func statusField(in *fuse.InHeader, name string) []byte {
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(in.Pid), 10) + "/status")
	if err != nil {
		return nil
	}
	_, rest, _ := bytes.Cut(status, []byte("\n"+name+":"))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	return bytes.TrimSpace(line)
}
