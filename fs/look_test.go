package fs

import (
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Names that were to be asked for are old until the volume has answered: the next lookup asks,
// and does not go by them.
func TestAskedOnceAnswered(t *testing.T) {
	f := nodesOf(t, linked(t))
	f.backing.local = false
	dir := &node{fd: -1} // which no client answers
	for range 2 {
		if _, _, err := f.backing.look(dirName{dir, "g"}); err != unix.EBADF || dir.asked.Load() != 0 {
			t.Errorf("look() of what does not answer: %v, asked at %d", err, dir.asked.Load())
		}
	}
	dir = &node{fd: f.nodes.get(rootID).fd}
	fd, _, err := f.backing.look(dirName{dir, "g"})
	if err != nil || dir.asked.Load() == 0 {
		t.Fatalf("look() = %v, asked at %d", err, dir.asked.Load())
	}
	unix.Close(fd)
}

// That there is no file behind a descriptor says nothing of a name: the kernel is to look
// again. Gluster says ENOENT where others say ESTALE.
func TestReopenOfWhatIsGone(t *testing.T) {
	const none = 1 << 30 // a descriptor that leads to no file
	if fd, err := reopen(none, unix.O_RDONLY); err != unix.ESTALE {
		t.Errorf("reopen() = %d, %v, want ESTALE", fd, err)
	}
}

// By the attributes of a directory the kernel lets callers through. A network volume's client
// may believe them for a minute, and is asked before the kernel is told.
func TestDirectoryIsAskedFor(t *testing.T) {
	f := nodesOf(t, linked(t))
	f.backing.local = false
	var out fuse.EntryOut
	if s := f.enter(f.nodes.get(rootID), "d", &out); !s.Ok() {
		t.Fatal(s)
	}
	dir := f.nodes.get(out.NodeId)
	if dir.asked.Swap(0) == 0 {
		t.Error("a lookup told old attributes")
	}
	if s := f.replyAttr(dir, new(fuse.AttrOut)); !s.Ok() || dir.asked.Load() == 0 {
		t.Errorf("GETATTR told old attributes: %v", s)
	}
}
