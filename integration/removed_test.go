package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A file that was removed, through another view of the machine or beside all, is not
// kept by a view that has only looked at it: its space is free. Who uses it keeps it.
func TestRemovedElsewhereIsLetGo(t *testing.T) {
	v := newVolume(t)
	if v.hasClients() {
		t.Skip("on a network volume nothing is looked for")
	}
	if err := unix.Mount("tmpfs", v.source, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(v.source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a, b := v.mount("a"), v.mount("b")
	p := newAgent(t)
	for _, name := range []string{"seen", "open", "named", "mapped"} {
		v.write(name, "bytes")
	}
	if _, err := os.Stat(b.path("seen")); err != nil {
		t.Fatal(err)
	}
	open := p.open(b.path("open"), rdonly)
	named := p.open(b.path("named"), unix.O_PATH)
	mapped := p.open(b.path("mapped"), rdwr)
	p.must(call{Op: "mmap", FD: mapped, N: 5})
	p.must(call{Op: "close", FD: mapped})
	remembers := func(name string) bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, v.inSource(name)) {
				return true
			}
		}
		return false
	}
	for _, gone := range []string{v.inSource("mapped"), a.path("open"), a.path("named"), a.path("seen")} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	if !remembers("seen") {
		t.Fatal("there is nothing to let go")
	}
	eventually(t, "what nobody uses is let go", func() bool { return !remembers("seen") })

	if r := p.do(call{Op: "pread", FD: open, N: 9}); r.Data != "bytes" {
		t.Errorf("open: %q, %v", r.Data, r.Err())
	}
	again := p.open(fmt.Sprintf("/proc/self/fd/%d", named), rdonly)
	if r := p.do(call{Op: "pread", FD: again, N: 9}); r.Data != "bytes" {
		t.Errorf("named: %q, %v", r.Data, r.Err())
	}
	p.must(call{Op: "store", FD: mapped, Data: "BYTES"})
	p.must(call{Op: "msync", FD: mapped})
}
