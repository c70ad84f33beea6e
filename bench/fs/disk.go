package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The machine's file system may not be ext4, or without a journal avoid recently freed inodes, so
// that rows influence later ones. So the bench makes its own, in a file.

// diskSize is the size of the file. Only used blocks take space.
const diskSize = 8 << 30

func newDisk(dir string) (string, error) {
	image, disk := filepath.Join(dir, "disk.img"), filepath.Join(dir, "disk")
	f, err := os.Create(image)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f.Truncate(diskSize), f.Close(), os.Mkdir(disk, 0o755)); err != nil {
		return "", err
	}
	for _, args := range [][]string{
		// Initialise all of it now: the kernel would do the rest while we measure.
		{"mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", image},
		{"mount", "-o", "loop", image, disk},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%s: %w: %s", args[0], err, out)
		}
	}
	return disk, nil
}

// removeDisk unmounts what newDisk has mounted. A program such as df may keep the disk for a
// moment.
func removeDisk(dir string) error {
	err := unix.Unmount(filepath.Join(dir, "disk"), unix.MNT_DETACH)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) { // not mounted
		return nil
	}
	return err
}
