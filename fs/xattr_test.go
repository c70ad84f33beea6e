package fs

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Before a user's write, truncation or chgrp, the kernel itself removes the file's capabilities, as the
// user. The user may not do that otherwise.
func TestCapabilitiesOfAFileAreRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	source := linked(t)
	file := filepath.Join(source, "g")
	none := []byte{1, 0, 0, 2, 19: 0} // a vfs_cap_data of version 2
	if err := unix.Setxattr(file, capability, none, 0); err != nil {
		t.Skip(err)
	}
	if err := unix.Setxattr(file, "security.other", nil, 0); err != nil {
		t.Fatal(err)
	}
	f := nodesOf(t, source)
	f.actor.root = true
	in := child(t, 1000, syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}})
	in.NodeId = f.learn(t, f.nodes.get(rootID), "g").id
	if s := f.RemoveXAttr(nil, in, capability); !s.Ok() {
		t.Errorf("%v", s)
	}
	if _, err := unix.Getxattr(file, capability, nil); err != unix.ENODATA {
		t.Errorf("then: %v", err)
	}
	if s := f.RemoveXAttr(nil, in, "security.other"); s != fuse.EPERM {
		t.Errorf("another attribute: %v", s)
	}
}
