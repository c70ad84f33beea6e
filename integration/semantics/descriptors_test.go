package semantics

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// withDescriptors runs a daemon that may have n descriptors, and may not raise its limit.
func withDescriptors(n int) (command []string) {
	return []string{"setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource", "prlimit", fmt.Sprintf("--nofile=%d:%[1]d", n)}
}

// A mount that may have few descriptors serves a tree of many files, and has
// not more of them than it may.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const allowed, dirs = 256, 10
	perDir := 300
	if longtest.For(t) > 0 {
		perDir = 500
	}
	v := lab.NewVolume(t)
	v.Via = withDescriptors(allowed)
	for d := range dirs {
		if err := os.Mkdir(filepath.Join(v.Source, fmt.Sprint(d)), 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range perDir {
			v.Write(fmt.Sprintf("%d/%d", d, f), fmt.Sprint(f))
		}
	}
	a := v.Mount("a")
	var l unix.Rlimit
	if err := unix.Prlimit(a.Cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &l); err != nil || l.Cur != allowed {
		t.Fatalf("the mount may have %d descriptors, %v", l.Cur, err)
	}
	for range 2 {
		found := 0
		err := filepath.WalkDir(a.Dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			if found++; found%50 == 0 {
				if err := os.WriteFile(path, []byte("written"), 0o644); err != nil {
					return err
				}
			}
			if _, err := e.Info(); err != nil {
				return err
			}
			_, err = os.ReadFile(path)
			return err
		})
		if err != nil || found != dirs*perDir {
			t.Fatalf("%d files, %v", found, err)
		}
	}
	if got := v.Read("0/0"); got != "0" && got != "written" {
		t.Errorf("a file holds %q", got)
	}
}

// A user who opens all that it can leaves the others descriptors and memory, also after an upgrade.
func TestOpenFilesAreShared(t *testing.T) {
	lab.Over(t, testOpenFilesAreShared, lab.Local)
}

func testOpenFilesAreShared(t *testing.T, on lab.Setup) {
	const allowed = 400
	v := on.NewVolume(t, "--allow-other")
	if err := os.Chmod(v.Source, 0o777); err != nil {
		t.Fatal(err)
	}
	v.Via = withDescriptors(allowed)
	a := v.Mount("a")
	greedy, other := v.NewUser(1000, 0), v.NewUser(1001, 0)
	openAll := func(op lab.Call) (fds []int) {
		t.Helper()
		for range allowed {
			r := greedy.Do(op)
			if r.Errno == unix.ENFILE {
				return fds
			}
			if r.Errno != 0 {
				t.Fatalf("%+v: %v after %d", op, r.Errno, len(fds))
			}
			fds = append(fds, r.N)
		}
		t.Fatal("one user has all descriptors of the daemon")
		return nil
	}
	create := lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDWR | unix.O_CREAT, Mode: 0o666}
	read := lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY}
	directory := lab.Call{Op: "open", Path: a.Dir, Flags: unix.O_RDONLY | unix.O_DIRECTORY}
	unnamed := lab.Call{Op: "open", Path: a.Dir, Flags: unix.O_RDWR | unix.O_TMPFILE, Mode: 0o600}
	othersWork := func(what string) {
		t.Helper()
		for _, op := range []lab.Call{{Op: "open", Path: a.Path("g"), Flags: create.Flags, Mode: 0o666}, directory, unnamed} {
			fd := other.Must(op)
			if op.Flags&unix.O_DIRECTORY == 0 {
				other.Must(lab.Call{Op: "write", FD: fd, Data: what})
			}
			other.Must(lab.Call{Op: "close", FD: fd})
		}
	}
	had := 0
	for _, op := range []lab.Call{create, read, directory, unnamed} {
		fds := openAll(op)
		othersWork(op.Path)
		// Refused before anything is done: the file stays as it is, and none is made.
		greedy.Must(lab.Call{Op: "close", FD: fds[0]})
		fd := greedy.Open(a.Path("f"), unix.O_WRONLY)
		greedy.Must(lab.Call{Op: "write", FD: fd, Data: "kept"})
		greedy.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY | unix.O_TRUNC}, unix.ENFILE)
		greedy.Fails(lab.Call{Op: "open", Path: a.Path("new"), Flags: create.Flags, Mode: 0o666}, unix.ENFILE)
		if _, err := os.Stat(v.InSource("new")); !os.IsNotExist(err) || v.Read("f") != "kept" {
			t.Errorf("an open that was refused made its file: %v, or truncated it: %q", err, v.Read("f"))
		}
		for _, fd := range append(fds[1:], fd) {
			greedy.Must(lab.Call{Op: "close", FD: fd})
		}
		// RELEASE comes after close.
		lab.Eventually(t, "what is closed can be opened again", func() bool {
			r := greedy.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
			if r.Errno == 0 {
				greedy.Must(lab.Call{Op: "close", FD: r.N})
			}
			return r.Errno == 0
		})
		if had == 0 {
			had = len(fds)
		} else if len(fds) < had-10 || len(fds) > had+10 {
			t.Errorf("%d could be opened, and before %d", len(fds), had)
		}
	}
	openAll(read)
	next := v.Start("a", "--take-over")
	lab.Eventually(t, "the new daemon serves", func() bool {
		select {
		case <-next.Done: // a busy machine was too slow, and the old one goes on
			next = v.Start("a", "--take-over")
		default:
		}
		return next.Said("took the mount over")
	})
	v.AwaitTakeover()
	greedy.Fails(read, unix.ENFILE)
	othersWork("upgraded")
}

// A directory that is being listed takes memory of the daemon: a user who lists very many at once
// leaves the others some.
func TestListedDirectoriesAreShared(t *testing.T) {
	lab.Over(t, testListedDirectoriesAreShared, lab.Local)
}

func testListedDirectoriesAreShared(t *testing.T, on lab.Setup) {
	const files, most = 300, 1000
	v := on.NewVolume(t, "--allow-other")
	v.Env = append(v.Env, "GOMEMLIMIT=64MiB")
	for i := range files {
		v.Write(fmt.Sprint(i), "")
	}
	a := v.Mount("a")
	greedy, other := v.NewUser(1000, 0), v.NewUser(1001, 0)
	var fds []int
	for enough := false; !enough; {
		fd := greedy.Open(a.Dir, unix.O_RDONLY|unix.O_DIRECTORY)
		fds = append(fds, fd)
		r := greedy.Do(lab.Call{Op: "getdents", FD: fd, N: 512}) // not to the end
		if enough = r.Errno == unix.ENOMEM; !enough && (r.Errno != 0 || len(fds) == most) {
			t.Fatalf("%v after %d directories", r.Errno, len(fds))
		}
	}
	listed := other.Do(lab.Call{Op: "list", Path: a.Dir})
	if n := len(strings.Fields(listed.Data)); listed.Errno != 0 || n != files {
		t.Errorf("another user lists %d names: %v", n, listed.Errno)
	}
	for listedToEnd := fds[0]; greedy.Must(lab.Call{Op: "getdents", FD: listedToEnd, N: 1 << 16}) > 0; {
	}
	last := fds[len(fds)-1]
	greedy.Must(lab.Call{Op: "getdents", FD: last, N: 512}) // by what the first has given back
	greedy.Fails(lab.Call{Op: "getdents", FD: fds[0], N: 512, Off: 1}, unix.ENOMEM)
}
