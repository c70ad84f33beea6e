package mounts

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// mount mounts something and makes sure that it is gone after the test.
func mount(t *testing.T, source, target, fstype string, flags uintptr, data string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount")
	}
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		t.Skipf("cannot mount %s here: %v", fstype, err)
	}
	t.Cleanup(func() {
		// EINVAL: the test has unmounted it.
		if err := unix.Unmount(target, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			t.Errorf("unmount %s: %v", target, err)
		}
	})
}

// mountFuse mounts a FUSE file system and returns its connection: closing it
// is what the death of a daemon is to the kernel.
func mountFuse(t *testing.T, source, target, fstype string) *os.File {
	t.Helper()
	conn, err := os.OpenFile(devFuse, os.O_RDWR, 0)
	if err != nil {
		t.Skip("no FUSE here:", err)
	}
	t.Cleanup(func() { conn.Close() })
	mount(t, source, target, fstype, 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", conn.Fd()))
	return conn
}

// mountDead leaves a mount whose daemon has ended.
func mountDead(t *testing.T, source, target string) {
	t.Helper()
	mountFuse(t, source, target, FSType).Close()
	if _, err := os.Stat(target); !errors.Is(err, unix.ENOTCONN) {
		t.Fatalf("stat of a dead mount: %v", err)
	}
}

// serve answers a FUSE connection for the rest of the test: the handshake,
// and EIO to everything else.
func serve(t *testing.T, conn *os.File, target string) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		in := make([]byte, 1<<17)
		for {
			n, err := unix.Read(int(conn.Fd()), in)
			if err != nil || n < 16 {
				return // ENODEV: unmounted
			}
			const initialise = 26
			out := make([]byte, 16)
			if binary.NativeEndian.Uint32(in[4:]) == initialise {
				out = append(out, make([]byte, 64)...)
				binary.NativeEndian.PutUint32(out[16:], 7)
				binary.NativeEndian.PutUint32(out[20:], 31)
				binary.NativeEndian.PutUint32(out[36:], 1<<16) // max_write
			} else {
				eio := -int32(unix.EIO)
				binary.NativeEndian.PutUint32(out[4:], uint32(eio))
			}
			binary.NativeEndian.PutUint32(out, uint32(len(out)))
			copy(out[8:16], in[8:16]) // the request's id
			_, _ = unix.Write(int(conn.Fd()), out)
		}
	})
	t.Cleanup(func() {
		// Another process may have a mount namespace with a copy of the view, which would go on.
		if err := unix.Unmount(target, unix.MNT_FORCE); err != nil {
			t.Error(err)
		}
		wg.Wait()
	})
}
