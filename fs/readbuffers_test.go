package fs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// The memory of read buffers is there before the kernel uses them.
func TestReadBuffersAreUsed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := filepath.Join(t.TempDir(), "view")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := fuse.NewServer(fuse.NewDefaultRawFileSystem(), dir, &fuse.MountOptions{MaxWrite: maxWrite, DirectMount: true})
	if err != nil {
		t.Fatal(err)
	}
	err = useReadBuffers(s)
	go s.Serve()
	t.Cleanup(func() {
		// Another process may have a mount namespace with a copy of the view, which would go on.
		if err := unix.Unmount(dir, unix.MNT_FORCE); err != nil {
			t.Error(err)
		}
		s.Wait()
	})
	if err := errors.Join(err, s.WaitMount()); err != nil {
		t.Fatal(err)
	}
	pool, err := readPool(s)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		b := pool.Get().([]byte)
		if len(b) < maxWrite {
			t.Fatalf("a buffer of %d bytes", len(b))
		}
		if n := absent(t, b); n > 0 {
			t.Errorf("%d pages of a buffer of %d bytes are not there", n, len(b))
		}
	}
	unused, err := unix.Mmap(-1, 0, maxWrite, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(unused)
	if n := absent(t, unused); n != maxWrite/os.Getpagesize() {
		t.Errorf("the test sees %d absent pages of memory that was never used", n)
	}
}

// absent returns how many pages of b have no memory.
func absent(t *testing.T, b []byte) (n int) {
	t.Helper()
	size := uintptr(os.Getpagesize())
	begin := uintptr(unsafe.Pointer(&b[0])) &^ (size - 1)
	end := uintptr(unsafe.Pointer(&b[len(b)-1])) + 1
	there := make([]byte, (end-begin+size-1)/size)
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, begin, end-begin, uintptr(unsafe.Pointer(&there[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, v := range there {
		if v&1 == 0 {
			n++
		}
	}
	return n
}
