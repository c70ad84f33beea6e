package integration

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// What a program has stored in a mapping and what then does not fit on the volume
// is an error of the next call that asks for it.
func TestMappingBeyondTheVolume(t *testing.T) {
	v := newVolume(t)
	if err := unix.Mount("tmpfs", v.source, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(v.source, 0); err != nil {
			t.Error(err)
		}
	})
	a := v.mount("a")
	v.write("other", strings.Repeat("x", 600<<10))
	const size = 1 << 20
	for _, told := range []string{"msync", "fsync", "close"} {
		for name, flags := range map[string]int{"plain": rdwr, "append": rdwr | appends, "direct": rdwr | unix.O_DIRECT} {
			t.Run(told+"/"+name, func(t *testing.T) {
				v.write("f", "")
				defer os.Remove(v.inSource("f"))
				if err := os.Truncate(v.inSource("f"), size); err != nil {
					t.Fatal(err)
				}
				p := newAgent(t)
				fd := p.open(a.path("f"), flags)
				p.must(call{Op: "mmap", FD: fd, N: size})
				p.must(call{Op: "store", FD: fd, Data: strings.Repeat("y", size)})
				if told == "close" {
					p.must(call{Op: "munmap", FD: fd})
				}
				if r := p.do(call{Op: told, FD: fd}); r.Errno != unix.ENOSPC {
					b, _ := os.ReadFile(v.inSource("f"))
					t.Errorf("%s: %v, and the volume has %d bytes of %d", told, r.Err(), bytes.Count(b, []byte("y")), size)
				}
				p.kill()
			})
		}
	}
	// Who writes is told how much is written.
	p := newAgent(t)
	fd := p.open(a.path("f"), wronly|create)
	n := p.must(call{Op: "write", FD: fd, Data: strings.Repeat("z", size)})
	if got := strings.Count(v.read("f"), "z"); n == size || n != got {
		t.Errorf("write: %d bytes of %d, and the volume has %d", n, size, got)
	}
	p.fails(call{Op: "write", FD: fd, Data: "z"}, unix.ENOSPC)
}

// What a network volume's client cannot store is an error of fsync also when a copy
// of the descriptor was closed before, and its close was told: a child that exits
// closes all that it has inherited.
func TestFsyncAfterACloseThatFailed(t *testing.T) {
	v := newVolumeOverClients(t, clientConfig{WriteBack: true}, "--sync", "close")
	if err := unix.Mount("tmpfs", v.source, "tmpfs", 0, "size=1m,mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(v.source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a := v.mount("a")
	p := newAgent(t)
	fd := p.open(a.path("f"), wronly|create)
	if err := os.WriteFile(v.inSource("other"), make([]byte, 2<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	p.must(call{Op: "write", FD: fd, Data: "lost"})
	p.fails(call{Op: "close", FD: p.must(call{Op: "dup", FD: fd})}, unix.ENOSPC)
	p.fails(call{Op: "fsync", FD: fd}, unix.ENOSPC)
	p.must(call{Op: "fsync", FD: fd}) // it is told once
	p.must(call{Op: "close", FD: fd})
}
