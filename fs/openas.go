package fs

import (
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// openAs opens the inode of an O_PATH descriptor for I/O with the rights of a
// request's caller.
func (f *FS) openAs(in *fuse.InHeader, fd int, flags int) (int, error) {
	if flags&fmodeExec != 0 {
		return f.openToRun(in, fd, flags)
	}
	file := -1
	err := f.as(in, 0, func() (err error) {
		file, err = reopen(fd, flags)
		return err
	})
	if err == unix.EACCES && flags == unix.O_RDONLY {
		// The kernel opens the file by itself for an ioctl. A program's open has O_LARGEFILE,
		// or cannot read from this descriptor.
		return reopen(fd, unix.O_PATH)
	}
	return file, err
}

// fmodeExec is the flag (FMODE_EXEC of linux/fs.h) by which the kernel opens a
// program to run it. No other open has it.
const fmodeExec = 0x20

// openToRun opens a program that the caller may run, but perhaps not read.
func (f *FS) openToRun(in *fuse.InHeader, fd, flags int) (int, error) {
	err := byDescriptor(f.as(in, 0, func() error { return unix.Faccessat2(fd, "", unix.X_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH) }))
	if err != nil {
		return -1, err
	}
	return reopen(fd, flags)
}
