package semantics

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// delegate makes files in a directory until it is delegated to their mount, however slow the
// machine is. It returns the largest token.
func delegate(v *lab.Volume, p *lab.Agent, m *lab.Mount, dir string) (last int64) {
	v.T.Helper()
	if err := os.MkdirAll(v.InSource(dir), 0o777); err != nil {
		v.T.Fatal(err)
	}
	n := 0
	lab.Eventually(v.T, "the directory is shown as kept", func() bool {
		for range 12 {
			fd := p.Open(m.Path(fmt.Sprintf("%s/f%d", dir, n)), unix.O_CREAT|unix.O_WRONLY)
			last = max(last, p.Token(fd))
			p.Must(lab.Call{Op: "close", FD: fd})
			n++
		}
		return delegated(v, dir)
	})
	return last
}

func delegated(v *lab.Volume, dir string) bool {
	return slices.ContainsFunc(v.LS(), func(e lab.Entry) bool { return e.Path == dir && e.State == "kept" })
}

// A directory in which one mount makes many files is delegated to it: most of these have no entry.
// Programs of that mount exclude each other there as ever. Another mount gets what it wants at
// once, but what is open; and that in its turn. Nothing is left when the mount ends.
// (docs/SEMANTICS.md, rule 33.)
func TestDelegatedDirectory(t *testing.T) {
	lab.Over(t, testDelegatedDirectory, lab.Local, lab.InLeases)
}

func testDelegatedDirectory(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", "1m") // an open that tries waits for an eighth of that
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b", "--keep", "1m")
	p, r, q := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	const opens = 100
	entriesIn := func(dir string) int {
		t.Helper()
		last := delegate(v, p, a, dir)
		entries := make(map[int64]bool)
		for range opens {
			p, r = r, p // each waits for the other's release
			fd := p.Open(a.Path(dir+"/f0"), unix.O_WRONLY|unix.O_APPEND)
			token := p.Token(fd)
			if token <= last {
				t.Fatalf("token %d after %d", token, last)
			}
			last = token
			entries[last/oneEntry] = true
			p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
			p.Must(lab.Call{Op: "close", FD: fd})
		}
		if got := len(v.Read(dir + "/f0")); got != opens {
			t.Errorf("%d bytes, want %d", got, opens)
		}
		return len(entries)
	}
	// One, unless the lock service does not tell of recalls in time: on a slow machine, but not twice.
	if n := entriesIn("t"); n > opens/2 {
		if again := entriesIn("again"); again > opens/2 {
			t.Errorf("%d opens took %d entries, and then %d", opens, n, again)
		}
	}

	fd := p.Open(a.Path("t/open"), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND)
	token := p.Token(fd)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
	busy := func(who *lab.Agent, m *lab.Mount, name string) {
		t.Helper()
		if got := who.InTime(lab.Call{Op: "open", Path: m.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); got.Errno != unix.EAGAIN {
			t.Errorf("open of %s on %s: %v", name, m.Name, got.Err())
		}
	}
	busy(r, a, "t/open")
	if got := r.Do(lab.Call{Op: "rename", Path: a.Path("t"), Path2: a.Path("u")}); got.Errno != unix.EBUSY {
		t.Errorf("rename of a directory with an open file: %v", got.Err())
	}
	other := q.Open(b.Path("t/f1"), unix.O_WRONLY|unix.O_NONBLOCK)
	q.Must(lab.Call{Op: "close", FD: other})
	busy(q, b, "t/open")
	if delegated(v, "t") {
		t.Error("it is still delegated")
	}
	es := v.LS()
	if i := slices.IndexFunc(es, func(e lab.Entry) bool { return e.Path == "t/open" }); i < 0 || es[i].Token != token || es[i].PID != p.PID() || es[i].State != "held" {
		t.Errorf("token %d, listed: %+v", token, es)
	}
	waits := q.Start(lab.Call{Op: "open", Path: b.Path("t/open"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("t/open")
	p.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
	p.Must(lab.Call{Op: "close", FD: fd})
	got := lab.Await(t, "the open", waits)
	if theirs := q.Token(got.N); theirs <= token {
		t.Errorf("token %d after %d", theirs, token)
	}
	q.Must(lab.Call{Op: "write", FD: got.N, Data: "b"})
	q.Must(lab.Call{Op: "close", FD: got.N})
	if got := v.Read("t/open"); got != "aab" {
		t.Errorf("the file holds %q", got)
	}

	delegate(v, p, a, "last")
	a.Stop()
	keepsNothing(v, a)
}

// Names are changed in a delegated directory, and from it to others and back. Whatever is there
// then is one owner's at a time, on both mounts.
func TestNamesInADelegatedDirectory(t *testing.T) {
	lab.Over(t, testNamesInADelegatedDirectory, lab.Local, lab.InLeases.ForLong())
}

func testNamesInADelegatedDirectory(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--keep", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	p, r, q := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	for i, c := range []struct {
		what string
		do   func(dir, other string) error
	}{
		{"rename", func(d, _ string) error { return os.Rename(d+"/f0", d+"/new") }},
		{"rename over", func(d, _ string) error { return os.Rename(d+"/f0", d+"/f1") }},
		{"unlink", func(d, _ string) error { return os.Remove(d + "/f0") }},
		{"move away", func(d, other string) error { return os.Rename(d+"/f0", other+"/f0") }},
		{"move in", func(d, other string) error { return os.Rename(other+"/f", d+"/f") }},
		{"link", func(d, _ string) error { return os.Link(d+"/f0", d+"/link") }},
		{"link elsewhere", func(d, other string) error { return os.Link(d+"/f0", other+"/link") }},
		{"rmdir", func(d, _ string) error { return os.Remove(d + "/dir") }},
		{"rename below", func(d, _ string) error { return os.Rename(d+"/dir", d+"/new") }},
		{"rename of the own", func(d, other string) error { return os.Rename(d, other+"/moved") }},
		{"removal of the own", func(d, _ string) error { return os.RemoveAll(d) }},
		{"directory moved in", func(d, other string) error { return os.Rename(other+"/dir", d+"/moved") }},
		{"a file without a name", func(d, _ string) error { return linkTmpfile(d, d+"/tmp") }},
		{"truncation", func(d, _ string) error { return os.Truncate(d+"/f0", 1) }},
		{"a file in its place", func(d, _ string) error {
			if err := os.RemoveAll(d); err != nil {
				return err
			}
			return os.WriteFile(d, nil, 0o666)
		}},
	} {
		// A directory that was recalled is not delegated again soon.
		dir, other := fmt.Sprint("t", i), fmt.Sprint("other", i)
		for _, d := range []string{dir + "/dir", other + "/dir"} {
			if err := os.MkdirAll(v.InSource(d), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		v.Write(other+"/f", "f")
		delegate(v, p, a, dir)
		var err error
		lab.Eventually(t, c.what+": nobody is in the way", func() bool { // the last close may be told late
			err = c.do(a.Path(dir), a.Path(other))
			return !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOLCK)
		})
		if err != nil {
			t.Errorf("%s: %v", c.what, err)
		}
		var paths []string
		err = filepath.WalkDir(v.Source, func(path string, e os.DirEntry, err error) error {
			rel, _ := filepath.Rel(v.Source, path)
			if err == nil && e.Type().IsRegular() && len(paths) < 2 && (strings.HasPrefix(rel, dir) || strings.HasPrefix(rel, other)) {
				paths = append(paths, rel)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			ours := r.Open(a.Path(path), unix.O_WRONLY)
			if got := q.InTime(lab.Call{Op: "open", Path: b.Path(path), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); got.Errno != unix.EAGAIN {
				t.Errorf("%s: open of %s beside another: %v", c.what, path, got.Err())
			}
			r.Must(lab.Call{Op: "close", FD: ours})
			q.Must(lab.Call{Op: "close", FD: q.Open(b.Path(path), unix.O_WRONLY)})
		}
	}
}

// linkTmpfile makes a file without a name, and then gives it one.
func linkTmpfile(dir, name string) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o666)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Linkat(unix.AT_FDCWD, fmt.Sprint("/proc/self/fd/", fd), unix.AT_FDCWD, name, unix.AT_SYMLINK_FOLLOW)
}

// A mount to which a directory is delegated is killed, while a program has a file open there: the
// others get it, and all else, when the lease has ended.
func TestDelegatedDirectoryOfADeadMount(t *testing.T) {
	lab.Over(t, testDelegatedDirectoryOfADeadMount, lab.Local, lab.InLeases)
}

func testDelegatedDirectoryOfADeadMount(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", mortalTTL, "--wait", "-1")
	a, b := v.Mount("a", "--keep", "1m"), v.Mount("b", "--ttl", "5m") // b must not lose its own
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	delegate(v, p, a, "t")
	p.Open(a.Path("t/open"), unix.O_CREAT|unix.O_WRONLY)
	a.Kill()
	for _, name := range []string{"t/open", "t/new"} {
		fd := q.Open(b.Path(name), unix.O_CREAT|unix.O_WRONLY)
		q.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		q.Must(lab.Call{Op: "close", FD: fd})
		if got := v.Read(name); got != "x" {
			t.Errorf("%s holds %q", name, got)
		}
	}
}

// A mount to which a directory is delegated is frozen while a program has a file open there, until
// another mount has had the file. When it goes on, the program cannot write any more.
func TestDelegatedDirectoryOfAFrozenMount(t *testing.T) {
	lab.Over(t, testDelegatedDirectoryOfAFrozenMount, lab.Local, lab.InLeases)
}

func testDelegatedDirectoryOfAFrozenMount(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", mortalTTL, "--wait", "-1", "--keep", "1m")
	a, b := v.Mount("a"), v.Mount("b", "--ttl", "5m")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	delegate(v, p, a, "t")
	held := p.Open(a.Path("t/f"), unix.O_CREAT|unix.O_WRONLY|unix.O_APPEND)
	before := p.Token(held)
	p.Must(lab.Call{Op: "write", FD: held, Data: "a"})
	lab.Freeze(t, a.Cmd.Process.Pid)
	fd := q.Open(b.Path("t/f"), unix.O_WRONLY|unix.O_APPEND)
	if between := q.Token(fd); between <= before {
		t.Errorf("token %d after %d", between, before)
	}
	q.Must(lab.Call{Op: "write", FD: fd, Data: "b"})
	late := p.Start(lab.Call{Op: "write", FD: held, Data: "late"})
	if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if got := lab.Await(t, "the write on the mount that was frozen", late); got.Errno != unix.EIO {
		t.Errorf("write: %v", got.Err())
	}
	q.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("t/f"); got != "ab" {
		t.Errorf("the file holds %q", got)
	}
}

// A file that was just opened in a delegated directory has no entry yet. A break of it is of its
// holder all the same, and not of the delegation. (docs/SEMANTICS.md, rule 25.)
func TestBreakInADelegatedDirectory(t *testing.T) {
	lab.Over(t, testBreakInADelegatedDirectory, lab.Local, lab.InLeases)
}

func testBreakInADelegatedDirectory(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--keep", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	p := lab.NewAgent(t)
	delegate(v, p, a, "t")
	fd, other := p.Open(a.Path("t/f0"), unix.O_WRONLY), p.Open(a.Path("t/f1"), unix.O_WRONLY)
	status, stdout, stderr := lab.Outcome(t, v.Command("break", b.Path("t/f0"), "--reason", "x"))
	if status != 0 || !strings.HasPrefix(stdout, fmt.Sprintf("broken: t/f0 was held by pid %d ", p.PID())) || !strings.HasSuffix(stdout, "now free\n") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
	p.Fails(lab.Call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
	p.Must(lab.Call{Op: "write", FD: other, Data: "not concerned"})
	delegate(v, p, a, "u")
	if status, stdout, stderr := lab.Outcome(t, v.Command("break", b.Path("u/f0"), "--reason", "x")); status != 1 || stdout != "" || !strings.Contains(stderr, "nobody holds it") {
		t.Errorf("exit status %d, %q, %q", status, stdout, stderr)
	}
}

// Trees that nobody else touches are made, copied, renamed and removed for a few commits.
func TestCommitsOfATree(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	probes := 0
	revision := func() int64 {
		fd := p.Open(a.Path(fmt.Sprint("probe", probes)), unix.O_CREAT|unix.O_WRONLY)
		probes++
		defer p.Must(lab.Call{Op: "close", FD: fd})
		return p.Token(fd) / oneEntry
	}
	const packages, files = 60, 5
	tooMany := func(dir string) (found []string) {
		t.Helper()
		delegate(v, p, a, dir)
		for _, c := range []struct {
			what string
			do   func(t string) error
		}{
			{"made", func(t string) error {
				for i := range packages {
					staged := fmt.Sprintf("%s/tree/staging/p%d", t, i)
					if err := os.MkdirAll(staged+"/lib", 0o777); err != nil {
						return err
					}
					for j := range files {
						if err := os.WriteFile(fmt.Sprintf("%s/lib/f%d", staged, j), []byte("x"), 0o666); err != nil {
							return err
						}
					}
					err := os.Rename(staged, fmt.Sprintf("%s/tree/p%d", t, i))
					for errors.Is(err, unix.EBUSY) { // a process that another test starts has a file of it open until its exec
						err = os.Rename(staged, fmt.Sprintf("%s/tree/p%d", t, i))
					}
					if err != nil {
						return err
					}
				}
				return nil
			}},
			{"copied", func(t string) error { return exec.Command("cp", "-r", t+"/tree", t+"/copy").Run() }},
			{"renamed", func(t string) error { return os.Rename(t+"/tree", t+"/renamed") }},
			{"removed", func(t string) error { return exec.Command("rm", "-r", t+"/renamed", t+"/copy").Run() }},
		} {
			begin := time.Now()
			before := revision()
			if err := c.do(a.Path(dir)); err != nil {
				t.Fatalf("%s: %v", c.what, err)
			}
			commits := revision() - before - 2 // of the first probe's close, perhaps, and the other's open
			t.Logf("%d files in %d directories are %s: %d commits in %v", packages*files, 2*packages, c.what, commits, time.Since(begin))
			// Where the machine stops for seconds, what is open is shown, and the directory has to be delegated anew.
			if slow := int64(time.Since(begin) / time.Second); commits > packages*files/100+20*slow {
				found = append(found, fmt.Sprintf("%s: %d commits", c.what, commits))
			}
		}
		return found
	}
	// The lock service may not tell of recalls in time: on a slow machine, but not twice.
	if found := tooMany("t"); len(found) > 0 {
		if again := tooMany("again"); len(again) > 0 {
			t.Errorf("%q, and then %q", found, again)
		}
	}
}
