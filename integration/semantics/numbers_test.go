package semantics

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The server of a network volume gives the number of a file that one client has removed
// to the next that is made, whoever knows the old one. Programs of the other client
// find what has the name: none gets ESTALE, or the old file's type.
// (docs/SEMANTICS.md, rule 15.)
func TestNumberUsedAgain(t *testing.T) {
	lab.Over(t, testNumberUsedAgain, lab.OverClients.That(lab.ClientConfig{Reuse: true}), lab.OnNetworkVolume)
}

func testNumberUsedAgain(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	here, there := lab.NewAgent(t), lab.NewAgent(t)
	make := func(data string) {
		t.Helper()
		fd := there.Must(lab.Call{Op: "open", Path: b.Path("x"), Flags: unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY, Mode: 0o644})
		there.Must(lab.Call{Op: "write", FD: fd, Data: data})
		there.Must(lab.Call{Op: "close", FD: fd})
	}
	number := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(v.Client("b"), "x"), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	make("one")
	here.Sees(a.Path("x"), "one")
	want := number()
	for _, data := range []string{"two", "a longer one"} {
		there.Must(lab.Call{Op: "unlink", Path: b.Path("x")})
		make(data)
		here.Sees(a.Path("x"), data)

		there.Must(lab.Call{Op: "unlink", Path: b.Path("x")})
		make("written")
		fd := here.Open(a.Path("x"), unix.O_RDWR)
		here.Must(lab.Call{Op: "pwrite", FD: fd, Off: 7, Data: " to"})
		here.Must(lab.Call{Op: "close", FD: fd})
		there.Sees(b.Path("x"), "written to")

		there.Must(lab.Call{Op: "unlink", Path: b.Path("x")})
		there.Must(lab.Call{Op: "mkdir", Path: b.Path("x"), Mode: 0o755})
		fd = there.Must(lab.Call{Op: "open", Path: b.Path("x/below"), Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o644})
		there.Must(lab.Call{Op: "close", FD: fd})
		lab.Eventually(t, "a directory in a file's place is opened", func() bool { // a's kernel believes names for a second
			r := here.Do(lab.Call{Op: "open", Path: a.Path("x"), Flags: unix.O_RDONLY | unix.O_DIRECTORY})
			if r.Errno != 0 && r.Errno != unix.ENOTDIR {
				t.Fatalf("open: %v", r.Errno)
			}
			return r.Errno == 0 && here.Do(lab.Call{Op: "close", FD: r.N}).Errno == 0
		})
		here.Sees(a.Path("x/below"), "")

		if got := number(); got != want && v.Clients == nil { // a real server uses it again when it likes
			t.Fatalf("the volume does not use numbers again: %d, then %d", want, got)
		}
		there.Must(lab.Call{Op: "unlink", Path: b.Path("x/below")})
		there.Must(lab.Call{Op: "rmdir", Path: b.Path("x")})
		make("file again")
		here.Sees(a.Path("x"), "file again")
	}
}
