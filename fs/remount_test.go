package fs

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// A client that fails to answer once, and is the one of before, is not given up: programs
// would lose what they have open.
func TestReachOfTheSameClient(t *testing.T) {
	f := nodesOf(t, linked(t))
	f.source = procPath(f.backing.root)
	n := f.learn(t, f.nodes.get(rootID), "g")
	root := f.backing.root
	f.backing.root = -1 // which no client answers
	again, err := f.Reach(func(string) error { return nil })
	f.backing.root = root
	if again || !errors.Is(err, ErrOutOfReach) || !errors.Is(err, unix.EBADF) {
		t.Errorf("Reach() = %v, %v", again, err)
	}
	if f.nodes.get(n.id) != n {
		t.Error("the files of a client that is alive are given up")
	}
	if again, err := f.Reach(nil); again || err != nil {
		t.Errorf("Reach() when it answers = %v, %v", again, err)
	}
}
