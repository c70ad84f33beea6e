package semantics

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/lockmgr"
)

// A file below a working directory is found, or refused, whatever other mounts
// make of the directories above: two renames elsewhere leave this mount with
// names that form a circle (x has y, which has x). The daemon once followed
// them until it was out of memory.
func TestNamesInACircle(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	if err := os.MkdirAll(v.InSource("x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.Must(lab.Call{Op: "chdir", Path: a.Path("x/y")}) // y is in x
	q.Must(lab.Call{Op: "rename", Path: b.Path("x/y"), Path2: b.Path("y")})
	q.Must(lab.Call{Op: "rename", Path: b.Path("x"), Path2: b.Path("y/x")})
	if r := p.Do(lab.Call{Op: "unlink", Path: "x/nothing"}); r.Errno == 0 { // and x is in y
		t.Error("a file was removed that is not there")
	}
	select {
	case r := <-p.Start(lab.Call{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_CREAT}):
		if r.Errno != 0 {
			t.Errorf("creation in the working directory: %v", r.Err())
		}
	case <-time.After(lab.CallTimeout):
		a.Kill()
		t.Fatal("creation in the working directory hangs")
	}
	v.AwaitLocked("y/new")
}

// A program goes on working in its directory when another mount has renamed it:
// by whichever call, for it never looks the directory up again. All calls but
// open were once answered ESTALE.
func TestRenamedWorkingDirectory(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	dir := func(i int) string { return fmt.Sprintf("d%d", i) }
	q.Must(lab.Call{Op: "mkdir", Path: b.Path(dir(0))})
	for _, name := range []string{"truncated", "removed", "old", "linked"} {
		v.Write(dir(0)+"/"+name, "data")
	}
	p.Must(lab.Call{Op: "chdir", Path: a.Path(dir(0))})
	calls := []lab.Call{
		{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_CREAT},
		{Op: "open", Path: "new", Flags: unix.O_WRONLY | unix.O_APPEND},
		{Op: "truncate", Path: "truncated", Off: 1},
		{Op: "unlink", Path: "removed"},
		{Op: "mkdir", Path: "sub"},
		{Op: "rename", Path: "old", Path2: "sub/renamed"},
		{Op: "rename", Path: "sub", Path2: "sub2"},
		{Op: "link", Path: "linked", Path2: "sub2/link"},
		{Op: "mkdir", Path: "empty"},
		{Op: "rmdir", Path: "empty"},
		{Op: "open", Path: "sub2/renamed", Flags: unix.O_WRONLY | unix.O_APPEND},
		{Op: "open", Path: "sub2/../sub2/link", Flags: unix.O_WRONLY | unix.O_APPEND},
	}
	for i, c := range calls {
		q.Must(lab.Call{Op: "rename", Path: b.Path(dir(i)), Path2: b.Path(dir(i + 1))})
		r := p.InTime(c)
		if r.Errno != 0 {
			t.Errorf("%s %s in a renamed working directory: %v", c.Op, c.Path, r.Err())
		} else if c.Op == "open" {
			p.Must(lab.Call{Op: "close", FD: r.N})
		}
	}
	last := dir(len(calls))
	for d, want := range map[string][]string{last: {"linked", "new", "sub2", "truncated"}, last + "/sub2": {"link", "renamed"}} {
		entries, err := os.ReadDir(v.InSource(d))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if !slices.Equal(names, want) {
			t.Errorf("%s has %q, want %q", d, names, want)
		}
	}
	if got := v.Read(last + "/truncated"); got != "d" {
		t.Errorf("the truncated file holds %q", got)
	}
}

// A program writes a file in a new directory, closes it and moves the directory
// into place. The kernel tells of the close a little after close() has
// returned: the rename was once refused with EBUSY until then.
func TestRenameOfDirectoryAfterClose(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	for range 80 {
		p.Rounds(1, lockmgr.DefaultCloseGrace,
			lab.Call{Op: "open", Path: a.Path("d/f"), Flags: unix.O_WRONLY | unix.O_CREAT},
			lab.Call{Op: "write", FD: lab.Opened, Data: "x"},
			lab.Call{Op: "close", FD: lab.Opened},
			lab.Call{Op: "rename", Path: a.Path("d"), Path2: a.Path("e")},
		)
		p.Must(lab.Call{Op: "rename", Path: a.Path("e"), Path2: a.Path("d")})
	}
}

// rename(p, p) does nothing, also while another mount replaces p, so that the
// kernel finds two files by the one name. That once asked for one lock twice,
// and was answered ENOLCK.
func TestRenameToItself(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("p", "")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	q.Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{
		{Op: "open", Path: b.Path("tmp"), Flags: unix.O_WRONLY | unix.O_CREAT},
		{Op: "close", FD: lab.Opened},
		{Op: "rename", Path: b.Path("tmp"), Path2: b.Path("p")},
	}})
	failed := p.Repeat(600, lab.Call{Op: "rename", Path: a.Path("p"), Path2: a.Path("p")})
	if len(failed) != 0 {
		t.Errorf("failed: %v", failed)
	}
}

// The lock follows the file that its owner renames, also if another of the
// owner's threads opens it just then. A handle that was on its way once kept
// the old name's lock, and the file under its new name had two writers.
func TestRenameDuringOpen(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded", "--scope", "node", "--name-wait", "1m") // the other mount's lock may be given back late
	opens := lab.NewTurnstile(t)
	v.Under(func(n lab.Below) gofs.InodeEmbedder { return &heldOpens{n, opens} })
	a, b := v.Mount("a"), v.Mount("b")
	t.Cleanup(opens.End)
	v.Write("f", "")
	p, same, other := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	opens.Shut.Store(true)
	pending := p.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	let := opens.Next()
	opens.Shut.Store(false)
	same.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("g")})
	let()
	r := lab.Await(t, "open", pending)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Err())
	}
	other.Must(lab.Call{Op: "close", FD: other.Open(b.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
	other.Fails(lab.Call{Op: "open", Path: b.Path("g"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	p.Must(lab.Call{Op: "write", FD: r.N, Data: "mine"})
	p.Must(lab.Call{Op: "close", FD: r.N})
	if got := v.Read("g"); got != "mine" {
		t.Errorf("the file holds %q", got)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// An open is of the file that has the name, also when the program was sent to
// look before, in a call that ended without an open. It once followed the file
// that the kernel knew by the name to where that was now, and truncated it there.
func TestOpenDoesNotFollowAFile(t *testing.T) {
	t.Parallel()
	for _, end := range []unix.Errno{unix.EACCES, unix.ENOENT} {
		t.Run(unix.ErrnoName(end), func(t *testing.T) {
			v := lab.NewVolume(t)
			a := v.Mount("a")
			p, other := v.NewUser(1000, 0), v.NewUser(1001, 0)
			// away takes the name f from a file, behind the view's back.
			away := func(to string) {
				t.Helper()
				if err := os.Rename(v.InSource("f"), v.InSource(to)); err != nil {
					t.Fatal(err)
				}
			}
			put := func(data string, mode os.FileMode) {
				t.Helper()
				v.Write("f", data)
				if err := os.Chmod(v.InSource("f"), mode); err != nil {
					t.Fatal(err)
				}
			}
			known := func() {
				t.Helper()
				lab.Eventually(t, "the kernel knows the file", func() bool {
					r := other.Do(lab.Call{Op: "mode", Path: a.Path("f")})
					return r.Errno == 0 && r.N == 0o666
				})
			}
			open := lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_TRUNC}
			put("first", 0o666)
			known()
			away("old1")
			put("root's", 0o600)
			p.Fails(open, unix.EACCES) // sent to look, and not let in
			away("old2")
			if end == unix.ENOENT {
				put("gone", 0o666)
				known()
				away("old3")
				p.Fails(open, unix.ENOENT) // sent again, and found nothing
			}
			put("last but one", 0o666)
			known()
			away("old4")
			put("last", 0o666)
			p.Must(open)
			if got := v.Read("old4"); got != "last but one" {
				t.Errorf("the file that had the name before holds %q", got)
			}
			if got := v.Read("f"); got != "" {
				t.Errorf("the file that was opened holds %q", got)
			}
		})
	}
}

// In a sticky directory a program removes files of its own user only, also
// when another mount has given the name of one to a file of somebody else's.
func TestStickyDirectoryBehindTheBack(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"unlink", "rename", "rename over"} {
		t.Run(op, func(t *testing.T) {
			v := lab.NewVolume(t)
			if err := os.Chmod(v.Source, 0o777|os.ModeSticky); err != nil {
				t.Fatal(err)
			}
			a := v.Mount("a")
			p := v.NewUser(1000, 0)
			p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
			p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)})
			if err := os.Remove(v.InSource("f")); err != nil {
				t.Fatal(err)
			}
			v.Write("f", "somebody else's")
			c := lab.Call{Op: "unlink", Path: a.Path("f")}
			switch op {
			case "rename":
				c = lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("h")}
			case "rename over":
				c = lab.Call{Op: "rename", Path: a.Path("g"), Path2: a.Path("f")}
			}
			p.Fails(c, unix.EPERM)
			if got := v.Read("f"); got != "somebody else's" {
				t.Errorf("f holds %q", got)
			}
		})
	}
}

// A directory that has files is not empty, whoever holds them.
func TestNotEmpty(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	for _, d := range []string{"d", "e"} {
		p.Must(lab.Call{Op: "mkdir", Path: a.Path(d)})
	}
	p.Open(a.Path("d/f"), unix.O_WRONLY|unix.O_CREAT)
	p.Fails(lab.Call{Op: "rmdir", Path: a.Path("d")}, unix.ENOTEMPTY)
	p.Fails(lab.Call{Op: "rename", Path: a.Path("e"), Path2: a.Path("d")}, unix.ENOTEMPTY)
	t.Cleanup(func() { lab.Run(t, "chattr", "-ia", v.InSource("d"), v.Source) }) // if it fails: they cannot be removed else
	for _, flag := range []string{"i", "a"} {
		for _, frozen := range []string{v.InSource("d"), v.Source} {
			lab.Run(t, "chattr", "+"+flag, frozen)
			p.Fails(lab.Call{Op: "rmdir", Path: a.Path("d")}, unix.EPERM)
			p.Fails(lab.Call{Op: "rename", Path: a.Path("e"), Path2: a.Path("d")}, unix.EPERM)
			lab.Run(t, "chattr", "-"+flag, frozen)
		}
	}
}

// A file that got the name that the FUSE library answers for would be out of reach.
func TestNameOfTheLibrary(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const name = ".go-fuse-epoll-hack"
	v.Write("f", "data")
	p := lab.NewAgent(t)
	p.Fails(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path(name)}, unix.EPERM)
	p.Fails(lab.Call{Op: "exchange", Path: a.Path("f"), Path2: a.Path(name)}, unix.EPERM)
	if r := p.Do(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_CREAT | unix.O_EXCL | unix.O_WRONLY}); r.Errno == 0 {
		t.Error("a file of that name was created")
	}
	if got := v.Read("f"); got != "data" {
		t.Errorf("the file holds %q", got)
	}
	v.Write(name, "made behind the view")
	if r := p.Do(lab.Call{Op: "list", Path: a.Dir}); r.Data != "f" {
		t.Errorf("the root lists %q, %v", r.Data, r.Err())
	}
	p.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	p.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("d/" + name)})
}
