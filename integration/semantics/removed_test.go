package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A file that was removed, through another view of the machine or beside all, is not
// kept by a view that has only looked at it: its space is free. Who uses it keeps it.
func TestRemovedElsewhereIsLetGo(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	if v.HasClients() {
		t.Skip("on a network volume nothing is looked for")
	}
	if err := unix.Mount("tmpfs", v.Source, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(v.Source, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	a, b := v.Mount("a"), v.Mount("b")
	p := lab.NewAgent(t)
	for _, name := range []string{"seen", "open", "named", "mapped"} {
		v.Write(name, "bytes")
	}
	if _, err := os.Stat(b.Path("seen")); err != nil {
		t.Fatal(err)
	}
	open := p.Open(b.Path("open"), unix.O_RDONLY)
	named := p.Open(b.Path("named"), unix.O_PATH)
	mapped := p.Open(b.Path("mapped"), unix.O_RDWR)
	p.Must(lab.Call{Op: "mmap", FD: mapped, N: 5})
	p.Must(lab.Call{Op: "close", FD: mapped})
	remembers := func(name string) bool {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", b.Cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, v.InSource(name)) {
				return true
			}
		}
		return false
	}
	if !remembers("seen") {
		t.Fatal("there is nothing to let go")
	}
	for _, gone := range []string{v.InSource("mapped"), a.Path("open"), a.Path("named"), a.Path("seen")} {
		if err := os.Remove(gone); err != nil {
			t.Fatal(err)
		}
	}
	lab.Eventually(t, "what nobody uses is let go", func() bool { return !remembers("seen") })

	if r := p.Do(lab.Call{Op: "pread", FD: open, N: 9}); r.Data != "bytes" {
		t.Errorf("open: %q, %v", r.Data, r.Err())
	}
	again := p.Open(fmt.Sprintf("/proc/self/fd/%d", named), unix.O_RDONLY)
	if r := p.Do(lab.Call{Op: "pread", FD: again, N: 9}); r.Data != "bytes" {
		t.Errorf("named: %q, %v", r.Data, r.Err())
	}
	p.Must(lab.Call{Op: "store", FD: mapped, Data: "BYTES"})
	p.Must(lab.Call{Op: "msync", FD: mapped})
}
