package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	readOnly  = unix.O_RDONLY
	writeOnly = unix.O_WRONLY
	readWrite = unix.O_RDWR
)

func seqRead(block int64) func(*work) error {
	return func(w *work) error {
		buf := make([]byte, block)
		for !w.enough() {
			fd, err := w.open(readFile, readOnly)
			if err != nil {
				return err
			}
			if err := w.drop(fd); err != nil {
				return err
			}
			w.begin()
			for off := int64(0); off < w.Sizes.Data; off += block {
				if err := pread(fd, buf, off); err != nil {
					return err
				}
			}
			w.end()
			w.ops += w.Sizes.Data / block
			w.bytes += w.Sizes.Data
			unix.Close(fd)
		}
		return nil
	}
}

// seqWrite overwrites a file: new blocks would measure the backing's allocation.
func seqWrite(block int64) func(*work) error {
	return func(w *work) error {
		fd, err := w.open(writeFile, writeOnly)
		if err != nil {
			return err
		}
		buf := noiseBytes(block)
		w.begin()
		for off := int64(0); w.more(); off = (off + block) % w.Sizes.Data {
			if err := pwrite(fd, buf, off); err != nil {
				return err
			}
			w.ops++
			w.bytes += block
		}
		w.end()
		return unix.Close(fd)
	}
}

// randRead reads pages in any order, each once before the cache is dropped.
func randRead(threads int) func(*work) error {
	return func(w *work) error {
		order := rand.New(rand.NewPCG(3, uint64(threads))).Perm(int(w.Sizes.Data / page))
		fd, err := w.open(readFile, readOnly)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for !w.enough() {
			if err := w.drop(fd); err != nil {
				return err
			}
			var next atomic.Int64
			w.begin()
			err := parallel(threads, func(int) error {
				buf := make([]byte, page)
				for w.more() {
					i := int(next.Add(1)) - 1
					if i >= len(order) {
						return nil
					}
					if err := pread(fd, buf, int64(order[i])*page); err != nil {
						return err
					}
				}
				return nil
			})
			w.end()
			w.ops += min(next.Load(), int64(len(order)))
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// randWrite overwrites pages in any order, each thread by its own descriptor.
func randWrite(threads, mode int) func(*work) error {
	return func(w *work) error {
		fds := make([]int, threads)
		for i := range fds {
			fd, err := w.open(writeFile, mode)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			fds[i] = fd
		}
		var ops atomic.Int64
		w.begin()
		err := parallel(threads, func(i int) error {
			r := rand.New(rand.NewPCG(4, uint64(i)))
			buf := noiseBytes(page)
			n := int64(0)
			for ; w.more(); n++ {
				if err := pwrite(fds[i], buf, r.Int64N(w.Sizes.Data/page)*page); err != nil {
					return err
				}
			}
			ops.Add(n)
			return nil
		})
		w.end()
		w.ops = ops.Load()
		return err
	}
}

func appends(w *work) error {
	return w.scratch(func(dir string) error {
		fd, err := unix.Open(dir+"/log", writeOnly|unix.O_APPEND|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
		if err != nil {
			return err
		}
		line := noiseBytes(100)
		w.begin()
		for ; w.more(); w.ops++ {
			if n, err := unix.Write(fd, line); err != nil || n != len(line) {
				return fmt.Errorf("append: %d bytes, %w", n, err)
			}
		}
		w.end()
		return unix.Close(fd)
	})
}

// syncedWrites writes as a database writes its log.
func syncedWrites(w *work) error {
	fd, err := w.open(writeFile, writeOnly)
	if err != nil {
		return err
	}
	buf := noiseBytes(page)
	w.begin()
	for ; w.more(); w.ops++ {
		if err := pwrite(fd, buf, w.ops*page%w.Sizes.Data); err != nil {
			return err
		}
		if err := unix.Fdatasync(fd); err != nil {
			return err
		}
	}
	w.end()
	return unix.Close(fd)
}

// hotRead reads cached pages of an open file. FUSE's folios are smaller than ext4's; no request is
// sent.
func hotRead(block int64) func(*work) error {
	return func(w *work) error {
		fd, err := w.open(hotFile, readOnly)
		if err != nil {
			return err
		}
		buf := make([]byte, block)
		pass := func() error {
			for off := int64(0); off < w.Sizes.Hot; off += block {
				if err := pread(fd, buf, off); err != nil {
					return err
				}
			}
			return nil
		}
		if err := pass(); err != nil {
			return err
		}
		w.begin()
		for w.more() {
			if err := pass(); err != nil {
				return err
			}
			w.ops += w.Sizes.Hot / block
			w.bytes += w.Sizes.Hot
		}
		w.end()
		return unix.Close(fd)
	}
}

func parallel(threads int, f func(i int) error) error {
	errs := make([]error, threads)
	var wg sync.WaitGroup
	for i := range threads {
		wg.Go(func() {
			runtime.LockOSThread()
			errs[i] = f(i)
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func pread(fd int, buf []byte, off int64) error {
	n, err := unix.Pread(fd, buf, off)
	if err == nil && n != len(buf) {
		err = errors.New("short")
	}
	if err != nil {
		return fmt.Errorf("read %d bytes at %d: %d, %w", len(buf), off, n, err)
	}
	return nil
}

func pwrite(fd int, buf []byte, off int64) error {
	n, err := unix.Pwrite(fd, buf, off)
	if err == nil && n != len(buf) {
		err = errors.New("short")
	}
	if err != nil {
		return fmt.Errorf("write %d bytes at %d: %d, %w", len(buf), off, n, err)
	}
	return nil
}
