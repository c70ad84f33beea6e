package integration

import (
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// The server of a network volume gives the number of a file that one client has removed
// to the next that is made, whoever knows the old one. Programs of the other client
// find what has the name: none gets ESTALE, or the old file's type.
// (docs/SEMANTICS.md, rule 15.)
func TestNumberUsedAgain(t *testing.T) {
	over(t, testNumberUsedAgain, overClients.that(clientConfig{Reuse: true}), onNetworkVolume)
}

func testNumberUsedAgain(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	here, there := newAgent(t), newAgent(t)
	make := func(data string) {
		t.Helper()
		fd := there.must(call{Op: "open", Path: b.path("x"), Flags: unix.O_CREAT | unix.O_EXCL | wronly, Mode: 0o644})
		there.must(call{Op: "write", FD: fd, Data: data})
		there.must(call{Op: "close", FD: fd})
	}
	number := func() uint64 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(v.client("b"), "x"), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	make("one")
	here.sees(a.path("x"), "one")
	want := number()
	for _, data := range []string{"two", "a longer one"} {
		there.must(call{Op: "unlink", Path: b.path("x")})
		make(data)
		here.sees(a.path("x"), data)

		there.must(call{Op: "unlink", Path: b.path("x")})
		make("written")
		fd := here.open(a.path("x"), rdwr)
		here.must(call{Op: "pwrite", FD: fd, Off: 7, Data: " to"})
		here.must(call{Op: "close", FD: fd})
		there.sees(b.path("x"), "written to")

		there.must(call{Op: "unlink", Path: b.path("x")})
		there.must(call{Op: "mkdir", Path: b.path("x"), Mode: 0o755})
		fd = there.must(call{Op: "open", Path: b.path("x/below"), Flags: unix.O_CREAT | wronly, Mode: 0o644})
		there.must(call{Op: "close", FD: fd})
		eventually(t, "a directory in a file's place is opened", func() bool { // a's kernel believes names for a second
			r := here.do(call{Op: "open", Path: a.path("x"), Flags: rdonly | unix.O_DIRECTORY})
			if r.Errno != 0 && r.Errno != unix.ENOTDIR {
				t.Fatalf("open: %v", r.Errno)
			}
			return r.Errno == 0 && here.do(call{Op: "close", FD: r.N}).Errno == 0
		})
		here.sees(a.path("x/below"), "")

		if got := number(); got != want && v.clients == nil { // a real server uses it again when it likes
			t.Fatalf("the volume does not use numbers again: %d, then %d", want, got)
		}
		there.must(call{Op: "unlink", Path: b.path("x/below")})
		there.must(call{Op: "rmdir", Path: b.path("x")})
		make("file again")
		here.sees(a.path("x"), "file again")
	}
}
