package integration

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// A file below a working directory is found, or refused, whatever other mounts
// make of the directories above: two renames elsewhere leave this mount with
// names that form a circle (x has y, which has x). The daemon once followed
// them until it was out of memory.
func TestNamesInACircle(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	if err := os.MkdirAll(v.inSource("x/y"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.must(call{Op: "chdir", Path: a.path("x/y")}) // y is in x
	q.must(call{Op: "rename", Path: b.path("x/y"), Path2: b.path("y")})
	q.must(call{Op: "rename", Path: b.path("x"), Path2: b.path("y/x")})
	if r := p.do(call{Op: "unlink", Path: "x/nothing"}); r.Errno == 0 { // and x is in y
		t.Error("a file was removed that is not there")
	}
	select {
	case r := <-p.start(call{Op: "open", Path: "new", Flags: wronly | create}):
		if r.Errno != 0 {
			t.Errorf("creation in the working directory: %v", r.Err())
		}
	case <-time.After(10 * time.Second):
		a.kill()
		t.Fatal("creation in the working directory hangs")
	}
	if es := v.ls(); len(es) != 1 || es[0].Path != "y/new" {
		t.Errorf("locked: %v, want y/new", es)
	}
}

// A program goes on working in its directory when another mount has renamed it:
// by whichever call, for it never looks the directory up again. All calls but
// open were once answered ESTALE.
func TestRenamedWorkingDirectory(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	dir := func(i int) string { return fmt.Sprintf("d%d", i) }
	q.must(call{Op: "mkdir", Path: b.path(dir(0))})
	for _, name := range []string{"truncated", "removed", "old", "linked"} {
		v.write(dir(0)+"/"+name, "data")
	}
	p.must(call{Op: "chdir", Path: a.path(dir(0))})
	calls := []call{
		{Op: "open", Path: "new", Flags: wronly | create},
		{Op: "open", Path: "new", Flags: wronly | appends},
		{Op: "truncate", Path: "truncated", Off: 1},
		{Op: "unlink", Path: "removed"},
		{Op: "mkdir", Path: "sub"},
		{Op: "rename", Path: "old", Path2: "sub/renamed"},
		{Op: "rename", Path: "sub", Path2: "sub2"},
		{Op: "link", Path: "linked", Path2: "sub2/link"},
		{Op: "mkdir", Path: "empty"},
		{Op: "rmdir", Path: "empty"},
		{Op: "open", Path: "sub2/renamed", Flags: wronly | appends},
		{Op: "open", Path: "sub2/../sub2/link", Flags: wronly | appends},
	}
	for i, c := range calls {
		q.must(call{Op: "rename", Path: b.path(dir(i)), Path2: b.path(dir(i + 1))})
		r := p.do(c)
		if r.Errno != 0 {
			t.Errorf("%s %s in a renamed working directory: %v", c.Op, c.Path, r.Err())
		} else if c.Op == "open" {
			p.must(call{Op: "close", FD: r.N})
		}
	}
	last := dir(len(calls))
	for d, want := range map[string][]string{last: {"linked", "new", "sub2", "truncated"}, last + "/sub2": {"link", "renamed"}} {
		entries, err := os.ReadDir(v.inSource(d))
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
	if got := v.read(last + "/truncated"); got != "d" {
		t.Errorf("the truncated file holds %q", got)
	}
}

// A program writes a file in a new directory, closes it and moves the directory
// into place. The kernel tells of the close a little after close() has
// returned: the rename was once refused with EBUSY until then.
func TestRenameOfDirectoryAfterClose(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	p := newAgent(t)
	p.must(call{Op: "mkdir", Path: a.path("d")})
	r := p.do(call{Op: "repeat", N: 80, Calls: []call{
		{Op: "open", Path: a.path("d/f"), Flags: wronly | create},
		{Op: "write", FD: opened, Data: "x"},
		{Op: "close", FD: opened},
		{Op: "rename", Path: a.path("d"), Path2: a.path("e")},
		{Op: "rename", Path: a.path("e"), Path2: a.path("d")},
	}})
	if len(r.Failed) != 0 {
		t.Errorf("failed: %v", r.Failed)
	}
}

// rename(p, p) does nothing, also while another mount replaces p, so that the
// kernel finds two files by the one name. That once asked for one lock twice,
// and was answered ENOLCK.
func TestRenameToItself(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("p", "")
	p, q := newAgent(t), newAgent(t)
	q.start(call{Op: "repeat", N: -1, Calls: []call{
		{Op: "open", Path: b.path("tmp"), Flags: wronly | create},
		{Op: "close", FD: opened},
		{Op: "rename", Path: b.path("tmp"), Path2: b.path("p")},
	}})
	r := p.do(call{Op: "repeat", N: 600, Calls: []call{{Op: "rename", Path: a.path("p"), Path2: a.path("p")}}})
	if len(r.Failed) != 0 {
		t.Errorf("failed: %v", r.Failed)
	}
}

// The lock follows the file that its owner renames, also if another of the
// owner's threads opens it just then. A handle that was on its way once kept
// the old name's lock, and the file under its new name had two writers.
func TestRenameDuringOpen(t *testing.T) {
	v := newVolume(t, "--embedded", "--scope", "node")
	v.inMemory()
	opens := newTurnstile(t)
	v.under(func(n below) gofs.InodeEmbedder { return &heldOpens{n, opens} })
	a, b := v.mount("a"), v.mount("b")
	t.Cleanup(opens.end)
	v.write("f", "")
	p, same, other := newAgent(t), newAgent(t), newAgent(t)
	opens.shut.Store(true)
	pending := p.start(call{Op: "open", Path: a.path("f"), Flags: wronly})
	let := opens.next()
	opens.shut.Store(false)
	same.must(call{Op: "rename", Path: a.path("f"), Path2: a.path("g")})
	let()
	r := await(t, "open", pending)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Err())
	}
	other.must(call{Op: "close", FD: other.open(b.path("f"), wronly|create)})
	other.fails(call{Op: "open", Path: b.path("g"), Flags: wronly | nonblock}, unix.EAGAIN)
	p.must(call{Op: "write", FD: r.N, Data: "mine"})
	p.must(call{Op: "close", FD: r.N})
	if got := v.read("g"); got != "mine" {
		t.Errorf("the file holds %q", got)
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// An open is of the file that has the name, also when the program was sent to
// look before, in a call that ended without an open. It once followed the file
// that the kernel knew by the name to where that was now, and truncated it there.
func TestOpenDoesNotFollowAFile(t *testing.T) {
	for _, end := range []unix.Errno{unix.EACCES, unix.ENOENT} {
		t.Run(unix.ErrnoName(end), func(t *testing.T) {
			v := newVolume(t)
			v.inMemory()
			a := v.mount("a")
			p, other := v.newUser(1000, 0), v.newUser(1001, 0)
			// away takes the name f from a file, behind the view's back.
			away := func(to string) {
				t.Helper()
				if err := os.Rename(v.inSource("f"), v.inSource(to)); err != nil {
					t.Fatal(err)
				}
			}
			put := func(data string, mode os.FileMode) {
				t.Helper()
				v.write("f", data)
				if err := os.Chmod(v.inSource("f"), mode); err != nil {
					t.Fatal(err)
				}
			}
			known := func() {
				t.Helper()
				eventually(t, "the kernel knows the file", func() bool {
					r := other.do(call{Op: "mode", Path: a.path("f")})
					return r.Errno == 0 && r.N == 0o666
				})
			}
			open := call{Op: "open", Path: a.path("f"), Flags: wronly | trunc}
			put("first", 0o666)
			known()
			away("old1")
			put("root's", 0o600)
			p.fails(open, unix.EACCES) // sent to look, and not let in
			away("old2")
			if end == unix.ENOENT {
				put("gone", 0o666)
				known()
				away("old3")
				p.fails(open, unix.ENOENT) // sent again, and found nothing
			}
			put("last but one", 0o666)
			known()
			away("old4")
			put("last", 0o666)
			p.must(open)
			if got := v.read("old4"); got != "last but one" {
				t.Errorf("the file that had the name before holds %q", got)
			}
			if got := v.read("f"); got != "" {
				t.Errorf("the file that was opened holds %q", got)
			}
		})
	}
}

// In a sticky directory a program removes files of its own user only, also
// when another mount has given the name of one to a file of somebody else's.
func TestStickyDirectoryBehindTheBack(t *testing.T) {
	for _, op := range []string{"unlink", "rename", "rename over"} {
		t.Run(op, func(t *testing.T) {
			v := newVolume(t)
			v.inMemory()
			if err := os.Chmod(v.source, 0o777|os.ModeSticky); err != nil {
				t.Fatal(err)
			}
			a := v.mount("a")
			p := v.newUser(1000, 0)
			p.must(call{Op: "close", FD: p.open(a.path("f"), wronly|create)})
			p.must(call{Op: "close", FD: p.open(a.path("g"), wronly|create)})
			if err := os.Remove(v.inSource("f")); err != nil {
				t.Fatal(err)
			}
			v.write("f", "somebody else's")
			c := call{Op: "unlink", Path: a.path("f")}
			switch op {
			case "rename":
				c = call{Op: "rename", Path: a.path("f"), Path2: a.path("h")}
			case "rename over":
				c = call{Op: "rename", Path: a.path("g"), Path2: a.path("f")}
			}
			p.fails(c, unix.EPERM)
			if got := v.read("f"); got != "somebody else's" {
				t.Errorf("f holds %q", got)
			}
		})
	}
}

// A directory that has files is not empty, whoever holds them.
func TestNotEmpty(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	p := newAgent(t)
	for _, d := range []string{"d", "e"} {
		p.must(call{Op: "mkdir", Path: a.path(d)})
	}
	p.open(a.path("d/f"), wronly|create)
	p.fails(call{Op: "rmdir", Path: a.path("d")}, unix.ENOTEMPTY)
	p.fails(call{Op: "rename", Path: a.path("e"), Path2: a.path("d")}, unix.ENOTEMPTY)
	for _, flag := range []string{"i", "a"} {
		for _, frozen := range []string{v.inSource("d"), v.source} {
			run(t, "chattr", "+"+flag, frozen)
			p.fails(call{Op: "rmdir", Path: a.path("d")}, unix.EPERM)
			p.fails(call{Op: "rename", Path: a.path("e"), Path2: a.path("d")}, unix.EPERM)
			run(t, "chattr", "-"+flag, frozen)
		}
	}
}
