package fs

import (
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// detach takes a view that is in use out of the tree. Programs that have it
// open keep what they have.
func (f *FS) detach() error {
	if f.root {
		return unix.Unmount(f.mount, unix.MNT_DETACH)
	}
	out, err := exec.Command("fusermount3", "-uz", f.mount).CombinedOutput()
	if err != nil {
		return fmt.Errorf("fusermount3 -uz: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
