package mounts

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sync writes what this machine has in its caches of the file system of source,
// and of those that are mounted below it, to where it belongs.
func Sync(source string) error {
	table, err := List()
	if err != nil {
		return err
	}
	if err := syncOne(source); err != nil {
		return err
	}
	below := strings.TrimSuffix(source, "/") + "/"
	for _, m := range table {
		if strings.HasPrefix(m.Point, below) {
			if err := syncOne(m.Point); err != nil {
				return err
			}
		}
	}
	return nil
}

func syncOne(path string) error {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", path, err)
	}
	return nil
}
