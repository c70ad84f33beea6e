package mounts

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Sync writes this machine's caches of source's file system, and of those mounted below it,
// to where they belong.
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
