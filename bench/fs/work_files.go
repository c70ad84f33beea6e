package main

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// batch is how many quick calls are made between two readings of the clock.
const batch = 16

func createWriteClose(w *work) error {
	buf := noiseBytes(page)
	return w.scratch(func(dir string) error {
		w.begin()
		for ; w.more(); w.ops++ {
			if err := overwrite(dir+"/f"+strconv.FormatInt(w.ops, 10), unix.O_CREAT|unix.O_TRUNC, buf); err != nil {
				return err
			}
		}
		w.end()
		return nil
	})
}

func openWriteClose(w *work) error {
	buf := noiseBytes(page)
	w.begin()
	for ; w.more(); w.ops++ {
		if err := overwrite(small(w.Dir, int(w.ops)), 0, buf); err != nil {
			return err
		}
	}
	w.end()
	return nil
}

func overwrite(path string, flags int, buf []byte) error {
	fd, err := unix.Open(path, writeOnly|flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err := pwrite(fd, buf, 0); err != nil {
		return err
	}
	return unix.Close(fd)
}

// createUnlink makes and removes a file, as for a lock file or a temporary one.
func createUnlink(w *work) error {
	return w.scratch(func(dir string) error {
		path := dir + "/f"
		w.begin()
		for ; w.more(); w.ops++ {
			fd, err := unix.Open(path, writeOnly|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o644)
			if err != nil {
				return err
			}
			if err := unix.Close(fd); err != nil {
				return err
			}
			if err := unix.Unlink(path); err != nil {
				return err
			}
		}
		w.end()
		return nil
	})
}

// openClose opens files to read, and reads nothing.
func openClose(w *work) error {
	w.begin()
	for ; w.more(); w.ops++ {
		fd, err := unix.Open(small(w.Dir, int(w.ops)), readOnly|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	w.end()
	return nil
}

// stats reads attributes again and again, as make does.
func stats(w *work) error {
	paths := make([]string, smallFiles)
	for i := range paths {
		paths[i] = small(w.Dir, i)
	}
	var st unix.Stat_t
	w.begin()
	for w.more() {
		for range batch {
			if err := unix.Lstat(paths[w.ops%smallFiles], &st); err != nil {
				return err
			}
			w.ops++
		}
	}
	w.end()
	return nil
}

// openHotRead opens and reads a file that has not changed since it was last read.
func openHotRead(w *work) error {
	buf := make([]byte, 1<<20)
	w.begin()
	for ; w.more(); w.ops++ {
		fd, err := w.open(hotFile, readOnly)
		if err != nil {
			return err
		}
		if err := pread(fd, buf, 0); err != nil {
			return err
		}
		w.bytes += int64(len(buf))
		if err := unix.Close(fd); err != nil {
			return err
		}
	}
	w.end()
	return nil
}
