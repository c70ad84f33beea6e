package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What is killed at the end includes a stopped child of a child: others may wait for it.
func TestDescendants(t *testing.T) {
	parent := exec.Command("sh", "-c", "sleep 1000 >/dev/null & kill -STOP $!; echo $!; exec sleep 1000")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	_, err = fmt.Fscan(bufio.NewReader(out), &child)
	found := descendants(os.Getpid())
	for _, pid := range found {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	if err != nil || !slices.Contains(found, parent.Process.Pid) || !slices.Contains(found, child) {
		t.Errorf("found %v, want %d and its child %d (%v)", found, parent.Process.Pid, child, err)
	}
	_ = parent.Wait()
}
