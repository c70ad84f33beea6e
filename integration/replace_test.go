package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// waitFor returns when somebody waits for path in etcd.
func (v *volume) waitFor(path string) {
	v.t.Helper()
	eventually(v.t, "somebody waits for "+path, func() bool { return v.waiting(path) == 1 })
}

// openBehind has the waiter open f, which holds 4 bytes, while the holder appends 4
// more by path, and returns the descriptor when the holder has closed f.
func (v *volume) openBehind(holder *agent, path string, waiter *agent, open call) int {
	v.t.Helper()
	fd := holder.open(path, wronly|appends)
	pending := waiter.start(open)
	v.waitFor("f")
	holder.must(call{Op: "write", FD: fd, Data: "two\n"})
	holder.must(call{Op: "close", FD: fd})
	opened := await(v.t, "open", pending)
	if opened.Errno != 0 {
		v.t.Fatalf("open: %v", opened.Err())
	}
	if size := waiter.must(call{Op: "size", FD: opened.N}); size != 8 {
		v.t.Errorf("fstat says %d bytes, want 8", size)
	}
	return opened.N
}

// While the waiter waits in open, its kernel's idea of the file grows stale: the
// holder appends. The waiter must write behind, see the new size, and seek to it.
func TestWaiterSeesWhatTheHolderWrote(t *testing.T) {
	over(t, testWaiterSeesWhatTheHolderWrote, local, overClients, overClientsThatKeep.forLong(), onNetworkVolume)
}

func testWaiterSeesWhatTheHolderWrote(t *testing.T, on setup) {
	for name, flags := range map[string]int{"append": wronly | appends, "append and read": rdwr | appends, "read and write": rdwr, "write": wronly} {
		t.Run(name, func(t *testing.T) {
			v := on.newVolume(t, "--wait", "-1")
			a, b := v.mount("a"), v.mount("b")
			v.write("f", "one\n")
			holder, waiter := newAgent(t), newAgent(t)
			// The waiter's kernel has the file's size and its pages.
			r := waiter.open(b.path("f"), rdonly)
			if got := waiter.do(call{Op: "pread", FD: r, N: 100}); got.Data != "one\n" {
				t.Fatalf("read %q", got.Data)
			}
			fd := v.openBehind(holder, a.path("f"), waiter, call{Op: "open", Path: b.path("f"), Flags: flags})
			if flags&appends == 0 {
				if end := waiter.must(call{Op: "seek", FD: fd, Flags: unix.SEEK_END}); end != 8 {
					t.Errorf("the end is at %d, want 8", end)
				}
			}
			waiter.must(call{Op: "write", FD: fd, Data: "three\n"})
			waiter.must(call{Op: "close", FD: fd})
			if got := v.read("f"); got != "one\ntwo\nthree\n" {
				t.Errorf("the file holds %q", got)
			}
			eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
		})
	}
}

// An open by /proc/self/fd looks nothing up, so that ESTALE cannot send it to
// look again; it must still write behind the holder's bytes.
func TestReopenWithoutLookup(t *testing.T) {
	over(t, testReopenWithoutLookup, local, overClients, overClientsThatKeep, onNetworkVolume)
}

func testReopenWithoutLookup(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "one\n")
	holder, waiter := newAgent(t), newAgent(t)
	r := waiter.open(b.path("f"), rdonly)
	fd := v.openBehind(holder, a.path("f"), waiter, call{Op: "open", Path: procFD(r), Flags: wronly | appends})
	waiter.must(call{Op: "write", FD: fd, Data: "three\n"})
	waiter.must(call{Op: "close", FD: fd})

	// And when the file has another name by now.
	if err := os.Rename(filepath.Join(v.source, "f"), filepath.Join(v.source, "g")); err != nil {
		t.Fatal(err)
	}
	moved := waiter.do(call{Op: "open", Path: procFD(r), Flags: wronly | appends})
	if v.hasClients() && moved.Errno == unix.EBUSY {
		return // a client that does not know where: no lock, no write
	}
	if moved.Errno != 0 {
		t.Fatalf("open: %v", moved.Err())
	}
	again := moved.N
	waiter.must(call{Op: "write", FD: again, Data: "four\n"})
	if es := v.ls(); len(es) != 1 || es[0].Path != "g" {
		t.Errorf("the file is locked as %v, want g", es)
	}
	waiter.must(call{Op: "close", FD: again})
	if got := v.read("g"); got != "one\ntwo\nthree\nfour\n" {
		t.Errorf("the file holds %q", got)
	}

	// And when it has none: no name, no lock, no write.
	if err := os.Remove(filepath.Join(v.source, "g")); err != nil {
		t.Fatal(err)
	}
	if r := waiter.do(call{Op: "open", Path: procFD(r), Flags: wronly}); r.Errno == 0 {
		t.Error("a file without a name was opened for write")
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// The holder replaces its file by rename while another waits in open for it:
// the waiter writes to the new file.
func TestHolderReplacesItsFile(t *testing.T) {
	over(t, testHolderReplacesItsFile, local, inLeases.forLong(), overClients.forLong(), overClientsThatDoubt, onNetworkVolume)
}

func testHolderReplacesItsFile(t *testing.T, on setup) {
	for name, flags := range map[string]int{"append": wronly | appends, "truncate": wronly | trunc, "write": rdwr, "create": wronly | create | appends} {
		t.Run(name, func(t *testing.T) {
			v := on.newVolume(t, "--wait", "-1")
			a, b := v.mount("a"), v.mount("b")
			v.write("f", "old\n")
			holder, waiter := newAgent(t), newAgent(t)
			fd := holder.open(a.path("f"), wronly)
			pending := waiter.start(call{Op: "open", Path: b.path("f"), Flags: flags})
			v.waitFor("f")
			tmp := holder.open(a.path("f.tmp"), wronly|create)
			holder.must(call{Op: "write", FD: tmp, Data: "new\n"})
			holder.must(call{Op: "rename", Path: a.path("f.tmp"), Path2: a.path("f")})
			holder.must(call{Op: "close", FD: tmp})
			holder.must(call{Op: "close", FD: fd})
			opened := await(t, "open", pending)
			if opened.Errno != 0 {
				t.Fatalf("open: %v", opened.Err())
			}
			waiter.must(call{Op: "write", FD: opened.N, Data: "me\n"})
			waiter.must(call{Op: "close", FD: opened.N})
			want := map[string]string{"append": "new\nme\n", "create": "new\nme\n", "truncate": "me\n", "write": "me\n\n"}[name]
			if got := v.read("f"); got != want {
				t.Errorf("the file holds %q, want %q", got, want)
			}
			eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
		})
	}
}

// The lock follows the file: while the renamed file is open, its new name is
// locked and its old one is free.
func TestLockFollowsRename(t *testing.T) {
	over(t, testLockFollowsRename, local, inLeases, overClients, overClientsThatDoubt, onNetworkVolume)
}

func testLockFollowsRename(t *testing.T, on setup) {
	v := on.newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	holder.must(call{Op: "rename", Path: a.path("f"), Path2: a.path("g")})
	other.fails(call{Op: "open", Path: b.path("g"), Flags: wronly | nonblock}, unix.EAGAIN)
	next := other.open(b.path("f"), wronly|create)
	holder.must(call{Op: "write", FD: fd, Data: "g"})
	other.must(call{Op: "write", FD: next, Data: "f"})
	holder.must(call{Op: "close", FD: fd})
	other.must(call{Op: "close", FD: next})
	if f, g := v.read("f"), v.read("g"); f != "f" || g != "g" {
		t.Errorf("f holds %q, g holds %q", f, g)
	}

	// A file that lost its last name leaves the name to others.
	fd = holder.open(a.path("f"), wronly)
	holder.must(call{Op: "unlink", Path: a.path("f")})
	var opened result
	eventually(t, "the name is free", func() bool {
		opened = other.do(call{Op: "open", Path: b.path("f"), Flags: wronly | create | nonblock})
		return opened.Errno == 0
	})
	holder.must(call{Op: "write", FD: fd, Data: "lost"})
	other.must(call{Op: "write", FD: opened.N, Data: "second"})
	other.must(call{Op: "close", FD: opened.N})
	if got := v.read("f"); got != "second" {
		t.Errorf("the file holds %q", got)
	}
}

// A directory is not renamed or removed by another mount while a file below it is
// held or waited for; and is as soon as nobody does.
func TestParentRenamedOnAnotherMount(t *testing.T) {
	over(t, testParentRenamedOnAnotherMount, local, inLeases.forLong(), overClients.forLong(), onNetworkVolume)
}

func testParentRenamedOnAnotherMount(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	holder, other := newAgent(t), newAgent(t)
	holder.must(call{Op: "mkdir", Path: a.path("d")})
	holder.must(call{Op: "mkdir", Path: a.path("d/e")})
	fd := holder.open(a.path("d/e/f"), wronly|create)
	for _, m := range []*mount{a, b} {
		other.fails(call{Op: "rename", Path: m.path("d"), Path2: m.path("x")}, unix.EBUSY)
		other.fails(call{Op: "rename", Path: m.path("d/e"), Path2: m.path("x")}, unix.EBUSY)
	}
	holder.must(call{Op: "write", FD: fd, Data: "one\n"})
	holder.must(call{Op: "close", FD: fd})
	eventually(t, "the directory is free", func() bool {
		return other.do(call{Op: "rename", Path: b.path("d"), Path2: b.path("x")}).Errno == 0
	})
	// Mount a still knows the directory by its old name.
	holder.fails(call{Op: "open", Path: a.path("d/e/f"), Flags: wronly | appends}, unix.ENOENT)
	fd = holder.open(a.path("x/e/f"), wronly|appends)
	holder.must(call{Op: "write", FD: fd, Data: "two\n"})
	eventually(t, "only x/e/f is locked", func() bool {
		es := v.ls()
		return len(es) == 1 && es[0].Path == "x/e/f"
	})
	holder.must(call{Op: "close", FD: fd})
	if got := v.read("x/e/f"); got != "one\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
	// A program whose working directory was renamed goes on working in it.
	holder.must(call{Op: "chdir", Path: a.path("x/e")})
	other.must(call{Op: "rename", Path: b.path("x"), Path2: b.path("y")})
	moved := holder.do(call{Op: "open", Path: "f", Flags: wronly | appends})
	if v.hasClients() && moved.Errno == unix.EBUSY {
		return // and its client does not know where to: no lock, no write
	}
	if moved.Errno != 0 {
		t.Fatalf("open: %v", moved.Err())
	}
	fd = moved.N
	holder.must(call{Op: "write", FD: fd, Data: "three\n"})
	if es := v.ls(); len(es) != 1 || es[0].Path != "y/e/f" {
		t.Errorf("locked: %v, want y/e/f", es)
	}
	holder.must(call{Op: "close", FD: fd})
	if got := v.read("y/e/f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A parent is renamed, and another takes its place, while an open waits for a
// file below: by a node that does not use the view, as the worst case. The
// waiter writes to the file that its path names now.
func TestParentReplacedDuringWait(t *testing.T) {
	over(t, testParentReplacedDuringWait, local, inLeases.forLong(), overClients, onNetworkVolume)
}

func testParentReplacedDuringWait(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	for _, d := range []string{"d", "new"} {
		if err := os.Mkdir(filepath.Join(v.source, d), 0o755); err != nil {
			t.Fatal(err)
		}
		v.write(d+"/f", d+"\n")
	}
	holder, waiter := newAgent(t), newAgent(t)
	fd := holder.open(a.path("d/f"), wronly)
	pending := waiter.start(call{Op: "open", Path: b.path("d/f"), Flags: wronly | appends})
	v.waitFor("d/f")
	for _, r := range [][2]string{{"d", "old"}, {"new", "d"}} {
		if err := os.Rename(filepath.Join(v.source, r[0]), filepath.Join(v.source, r[1])); err != nil {
			t.Fatal(err)
		}
	}
	holder.must(call{Op: "close", FD: fd})
	opened := await(t, "open", pending)
	if opened.Errno != 0 {
		t.Fatalf("open: %v", opened.Err())
	}
	waiter.must(call{Op: "write", FD: opened.N, Data: "me\n"})
	waiter.must(call{Op: "close", FD: opened.N})
	if old, now := v.read("old/f"), v.read("d/f"); old != "d\n" || now != "new\nme\n" {
		t.Errorf("the old file holds %q, the new one %q", old, now)
	}
}

// A program whose open of a file ended without one, since its holder has removed
// it, opens another file by a name that its kernel remembers. Another mount has put
// the directory away since, and made a new one: the program gets the new one's file.
func TestDirectoryReplacedAfterAFailedOpen(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	one, two := newAgent(t), newAgent(t)
	two.must(call{Op: "mkdir", Path: b.path("d")})
	v.write("d/y", "old\n")
	fd := two.open(b.path("d/x"), wronly|create)
	pending := one.start(call{Op: "open", Path: a.path("d/x"), Flags: wronly})
	v.waitFor("d/x")
	two.must(call{Op: "unlink", Path: b.path("d/x")})
	two.must(call{Op: "close", FD: fd})
	if r := await(t, "open", pending); r.Errno != unix.ENOENT {
		t.Fatalf("open of what was removed: %v, want ENOENT", r.Err())
	}

	// The lock that was kept for the open to come again.
	eventually(t, "nothing is locked", func() bool { return len(v.ls()) == 0 })
	one.must(call{Op: "mode", Path: a.path("d/y")}) // its kernel knows it now
	two.must(call{Op: "rename", Path: b.path("d"), Path2: b.path("away")})
	two.must(call{Op: "mkdir", Path: b.path("d")})
	v.write("d/y", "new\n")
	fd = one.open(a.path("d/y"), wronly|appends)
	one.must(call{Op: "write", FD: fd, Data: "one\n"})
	one.must(call{Op: "close", FD: fd})
	if away, now := v.read("away/y"), v.read("d/y"); away != "old\n" || now != "new\none\n" {
		t.Errorf("the file that was put away holds %q, the new one %q", away, now)
	}
}

// Another mount puts a directory away in which a program stands, and makes a new
// one. What the program opens from where it stands is there; what it opens by the
// directory's name, which its kernel still remembers, is in the new one, though the
// view has just seen where the old one is.
func TestDirectoryPutAwayUnderAProgram(t *testing.T) {
	v := newVolume(t)
	a, b := v.mount("a"), v.mount("b")
	one, two := newAgent(t), newAgent(t)
	for _, d := range []string{"d", "d/e"} {
		two.must(call{Op: "mkdir", Path: b.path(d)})
	}
	v.write("d/e/f", "old\n")
	one.must(call{Op: "chdir", Path: a.path("d")})
	one.must(call{Op: "mode", Path: a.path("d/e/f")}) // its kernel knows it now
	two.must(call{Op: "rename", Path: b.path("d"), Path2: b.path("away")})
	for _, d := range []string{"d", "d/e"} {
		two.must(call{Op: "mkdir", Path: b.path(d)})
	}
	v.write("d/e/f", "new\n")
	for _, p := range [][2]string{{"there", "e/f"}, {"by name", a.path("d/e/f")}, {"by dots and name", "../d/e/f"}, {"by dots", "e/../e/f"}} {
		fd := one.open(p[1], wronly|appends)
		one.must(call{Op: "write", FD: fd, Data: p[0] + "\n"})
		one.must(call{Op: "close", FD: fd})
	}
	for file, want := range map[string][]string{"away/e/f": {"by dots", "old", "there"}, "d/e/f": {"by dots and name", "by name", "new"}} {
		got := strings.Split(strings.TrimSpace(v.read(file)), "\n")
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
}

// A directory that another mount has removed, renamed or replaced is not listed in
// place of what has its name, though the kernel remembers it.
func TestDirectorySupplanted(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	rounds := 0
	for _, c := range []struct {
		what  string
		makes func(two *agent, d string)
		errno unix.Errno
	}{
		{"a new directory", func(two *agent, d string) {
			two.must(call{Op: "mkdir", Path: b.path(d)})
			v.write(d+"/new", "")
		}, 0},
		{"a file", func(two *agent, d string) {
			two.must(call{Op: "close", FD: two.open(b.path(d), wronly|create)})
		}, unix.ENOTDIR},
		{"nothing", func(*agent, string) {}, unix.ENOENT},
	} {
		for _, away := range []string{"removed", "renamed", "renamed, and seen there", "renamed, and used by who stands there"} {
			t.Run(c.what+" where one was "+away, func(t *testing.T) {
				rounds++
				d, e := fmt.Sprint("d", rounds), fmt.Sprint("e", rounds)
				one, two, three := newAgent(t), newAgent(t), newAgent(t)
				two.must(call{Op: "mkdir", Path: b.path(d)})
				v.write(d+"/old", "")
				three.must(call{Op: "chdir", Path: a.path(d)})
				one.lists(a.path(d), "old")
				if away == "removed" {
					two.must(call{Op: "unlink", Path: b.path(d + "/old")})
					two.must(call{Op: "rmdir", Path: b.path(d)})
				} else {
					two.must(call{Op: "rename", Path: b.path(d), Path2: b.path(e)})
				}
				c.makes(two, d)
				if away == "renamed, and used by who stands there" && !v.hasClients() {
					three.must(call{Op: "close", FD: three.open("old", wronly)})
				}
				if away == "renamed, and seen there" {
					three.lists(a.path(e), "old")
				}
				if c.errno != 0 {
					one.fails(call{Op: "list", Path: a.path(d)}, c.errno)
				} else {
					one.lists(a.path(d), "new")
				}
			})
		}
	}
}

// Who stands in a directory that another mount has moved lists it, whatever has its
// former name.
func TestMovedDirectoryIsListed(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	one, two := newAgent(t), newAgent(t)
	two.must(call{Op: "mkdir", Path: b.path("d")})
	v.write("d/f", "")
	one.must(call{Op: "chdir", Path: a.path("d")})
	two.must(call{Op: "rename", Path: b.path("d"), Path2: b.path("e")})
	v.write("d", "a file")
	for range 3 {
		one.lists(".", "f")
	}
	one.lists(a.path("e"), "f")
	one.lists(".", "f")
	if !v.hasClients() { // else the client does not know where it is
		one.must(call{Op: "close", FD: one.open("f", wronly)})
	}
	one.lists(".", "f")
	one.fails(call{Op: "list", Path: a.path("d")}, unix.ENOTDIR)
	one.lists(".", "f")
}

// lists has the agent list a directory.
func (a *agent) lists(path, want string) {
	a.t.Helper()
	if r := a.do(call{Op: "list", Path: path}); r.Errno != 0 || r.Data != want {
		a.t.Errorf("%s lists %q, %v; want %q", path, r.Data, r.Err(), want)
	}
}

// A file that another mount has put away is linked by a descriptor, wherever it is
// now; by its former name what has that is linked, though the kernel remembers it.
func TestLinkOfWhatWasPutAway(t *testing.T) {
	for what, putAway := range map[string]func(two *agent, b *mount){
		"renamed": func(two *agent, b *mount) {
			two.must(call{Op: "rename", Path: b.path("f"), Path2: b.path("old")})
			two.must(call{Op: "rename", Path: b.path("g"), Path2: b.path("f")})
		},
		"exchanged": func(two *agent, b *mount) { two.must(call{Op: "exchange", Path: b.path("f"), Path2: b.path("g")}) },
		"replaced":  func(two *agent, b *mount) { two.must(call{Op: "rename", Path: b.path("g"), Path2: b.path("f")}) },
	} {
		for _, seen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, seen: %v", what, seen), func(t *testing.T) {
				v := newVolume(t)
				v.inMemory()
				a, b := v.mount("a"), v.mount("b")
				one, two := newAgent(t), newAgent(t)
				v.write("f", "old")
				v.write("g", "new")
				fd := one.open(a.path("f"), rdonly)
				putAway(two, b)
				if seen {
					one.do(call{Op: "mode", Path: a.path("old")})
					one.do(call{Op: "mode", Path: a.path("g")})
				}
				one.must(call{Op: "link", Path: a.path("f"), Path2: a.path("by name")})
				if got := v.read("by name"); got != "new" {
					t.Errorf("by its name %q was linked", got)
				}
				if v.hasClients() && (!seen || what == "replaced") {
					return // its client does not know where it is
				}
				byFD := call{Op: "name", FD: fd, Path: a.path("by descriptor")}
				if what == "replaced" {
					one.fails(byFD, unix.ENOENT)
					return
				}
				for range 2 {
					one.must(byFD)
					if got := v.read("by descriptor"); got != "old" {
						t.Errorf("by a descriptor %q was linked", got)
					}
					byFD.Path = a.path("by descriptor") + " again"
				}
			})
		}
	}
}
