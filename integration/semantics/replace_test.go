package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// openBehind has the waiter open f, which holds 4 bytes, while the holder appends 4
// more by path, and returns the descriptor when the holder has closed f.
func openBehind(v *lab.Volume, holder *lab.Agent, path string, waiter *lab.Agent, open lab.Call) int {
	v.T.Helper()
	fd := holder.Open(path, unix.O_WRONLY|unix.O_APPEND)
	pending := waiter.Start(open)
	v.WaitFor("f")
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "two\n"})
	closed := time.Now()
	holder.Must(lab.Call{Op: "close", FD: fd})
	opened := lab.Await(v.T, "open", pending)
	if lab.Forgotten(opened, closed) {
		opened = waiter.InTime(open)
	}
	if opened.Errno != 0 {
		v.T.Fatalf("open: %v", opened.Err())
	}
	if size := waiter.Must(lab.Call{Op: "size", FD: opened.N}); size != 8 {
		v.T.Errorf("fstat says %d bytes, want 8", size)
	}
	return opened.N
}

// While the waiter waits in open, its kernel's idea of the file grows stale: the
// holder appends. The waiter must write behind, see the new size, and seek to it.
func TestWaiterSeesWhatTheHolderWrote(t *testing.T) {
	lab.Over(t, testWaiterSeesWhatTheHolderWrote, lab.Local, lab.OverClients, lab.OverClientsThatKeep.ForLong(), lab.OnNetworkVolume)
}

func testWaiterSeesWhatTheHolderWrote(t *testing.T, on lab.Setup) {
	for name, flags := range map[string]int{"append": unix.O_WRONLY | unix.O_APPEND, "append and read": unix.O_RDWR | unix.O_APPEND, "read and write": unix.O_RDWR, "write": unix.O_WRONLY} {
		t.Run(name, func(t *testing.T) {
			v := on.NewVolume(t, "--wait", "-1")
			a, b := v.Mount("a"), v.Mount("b")
			v.Write("f", "one\n")
			holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
			// The waiter's kernel has the file's size and its pages.
			r := waiter.Open(b.Path("f"), unix.O_RDONLY)
			if got := waiter.Do(lab.Call{Op: "pread", FD: r, N: 100}); got.Data != "one\n" {
				t.Fatalf("read %q", got.Data)
			}
			fd := openBehind(v, holder, a.Path("f"), waiter, lab.Call{Op: "open", Path: b.Path("f"), Flags: flags})
			if flags&unix.O_APPEND == 0 {
				if end := waiter.Must(lab.Call{Op: "seek", FD: fd, Flags: unix.SEEK_END}); end != 8 {
					t.Errorf("the end is at %d, want 8", end)
				}
			}
			waiter.Must(lab.Call{Op: "write", FD: fd, Data: "three\n"})
			waiter.Must(lab.Call{Op: "close", FD: fd})
			if got := v.Read("f"); got != "one\ntwo\nthree\n" {
				t.Errorf("the file holds %q", got)
			}
			lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
		})
	}
}

// An open by /proc/self/fd looks nothing up, so that ESTALE cannot send it to
// look again; it must still write behind the holder's bytes.
func TestReopenWithoutLookup(t *testing.T) {
	lab.Over(t, testReopenWithoutLookup, lab.Local, lab.OverClients, lab.OverClientsThatKeep, lab.OnNetworkVolume)
}

func testReopenWithoutLookup(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "one\n")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	r := waiter.Open(b.Path("f"), unix.O_RDONLY)
	fd := openBehind(v, holder, a.Path("f"), waiter, lab.Call{Op: "open", Path: lab.ProcFD(r), Flags: unix.O_WRONLY | unix.O_APPEND})
	waiter.Must(lab.Call{Op: "write", FD: fd, Data: "three\n"})
	waiter.Must(lab.Call{Op: "close", FD: fd})

	// And when the file has another name by now.
	if err := os.Rename(filepath.Join(v.Source, "f"), filepath.Join(v.Source, "g")); err != nil {
		t.Fatal(err)
	}
	moved := waiter.InTime(lab.Call{Op: "open", Path: lab.ProcFD(r), Flags: unix.O_WRONLY | unix.O_APPEND})
	if v.HasClients() && moved.Errno == unix.EBUSY {
		return // a client that does not know where: no lock, no write
	}
	if moved.Errno != 0 {
		t.Fatalf("open: %v", moved.Err())
	}
	again := moved.N
	waiter.Must(lab.Call{Op: "write", FD: again, Data: "four\n"})
	v.AwaitLocked("g")
	waiter.Must(lab.Call{Op: "close", FD: again})
	if got := v.Read("g"); got != "one\ntwo\nthree\nfour\n" {
		t.Errorf("the file holds %q", got)
	}

	// And when it has none: no name, no lock, no write.
	if err := os.Remove(filepath.Join(v.Source, "g")); err != nil {
		t.Fatal(err)
	}
	if r := waiter.Do(lab.Call{Op: "open", Path: lab.ProcFD(r), Flags: unix.O_WRONLY}); r.Errno == 0 {
		t.Error("a file without a name was opened for write")
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// The holder replaces its file by rename while another waits in open for it:
// the waiter writes to the new file.
func TestHolderReplacesItsFile(t *testing.T) {
	lab.Over(t, testHolderReplacesItsFile, lab.Local, lab.InLeases.ForLong(), lab.OverClients.ForLong(), lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testHolderReplacesItsFile(t *testing.T, on lab.Setup) {
	for name, flags := range map[string]int{"append": unix.O_WRONLY | unix.O_APPEND, "truncate": unix.O_WRONLY | unix.O_TRUNC, "write": unix.O_RDWR, "create": unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND} {
		t.Run(name, func(t *testing.T) {
			v := on.NewVolume(t, "--wait", "-1")
			a, b := v.Mount("a"), v.Mount("b")
			v.Write("f", "old\n")
			holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
			fd := holder.Open(a.Path("f"), unix.O_WRONLY)
			pending := waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: flags})
			v.WaitFor("f")
			tmp := holder.Open(a.Path("f.tmp"), unix.O_WRONLY|unix.O_CREAT)
			holder.Must(lab.Call{Op: "write", FD: tmp, Data: "new\n"})
			holder.Must(lab.Call{Op: "rename", Path: a.Path("f.tmp"), Path2: a.Path("f")})
			holder.Must(lab.Call{Op: "close", FD: tmp})
			holder.Must(lab.Call{Op: "close", FD: fd})
			opened := lab.Await(t, "open", pending)
			if opened.Errno != 0 {
				t.Fatalf("open: %v", opened.Err())
			}
			waiter.Must(lab.Call{Op: "write", FD: opened.N, Data: "me\n"})
			waiter.Must(lab.Call{Op: "close", FD: opened.N})
			want := map[string]string{"append": "new\nme\n", "create": "new\nme\n", "truncate": "me\n", "write": "me\n\n"}[name]
			if got := v.Read("f"); got != want {
				t.Errorf("the file holds %q, want %q", got, want)
			}
			lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
		})
	}
}

// The lock follows the file: while the renamed file is open, its new name is
// locked and its old one is free.
func TestLockFollowsRename(t *testing.T) {
	lab.Over(t, testLockFollowsRename, lab.Local, lab.InLeases, lab.OverClients, lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testLockFollowsRename(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	holder.Must(lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("g")})
	other.Fails(lab.Call{Op: "open", Path: b.Path("g"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	next := other.Open(b.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "g"})
	other.Must(lab.Call{Op: "write", FD: next, Data: "f"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	other.Must(lab.Call{Op: "close", FD: next})
	if f, g := v.Read("f"), v.Read("g"); f != "f" || g != "g" {
		t.Errorf("f holds %q, g holds %q", f, g)
	}

	// A file that lost its last name leaves the name to others.
	fd = holder.Open(a.Path("f"), unix.O_WRONLY)
	holder.Must(lab.Call{Op: "unlink", Path: a.Path("f")})
	var opened lab.Result
	lab.Eventually(t, "the name is free", func() bool {
		opened = other.Do(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK})
		return opened.Errno == 0
	})
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "lost"})
	other.Must(lab.Call{Op: "write", FD: opened.N, Data: "second"})
	other.Must(lab.Call{Op: "close", FD: opened.N})
	if got := v.Read("f"); got != "second" {
		t.Errorf("the file holds %q", got)
	}
}

// A directory is not renamed or removed by another mount while a file below it is
// held or waited for; and is as soon as nobody does.
func TestParentRenamedOnAnotherMount(t *testing.T) {
	lab.Over(t, testParentRenamedOnAnotherMount, lab.Local, lab.InLeases.ForLong(), lab.OverClients.ForLong(), lab.OnNetworkVolume)
}

func testParentRenamedOnAnotherMount(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	holder.Must(lab.Call{Op: "mkdir", Path: a.Path("d")})
	holder.Must(lab.Call{Op: "mkdir", Path: a.Path("d/e")})
	fd := holder.Open(a.Path("d/e/f"), unix.O_WRONLY|unix.O_CREAT)
	for _, m := range []*lab.Mount{a, b} {
		other.Fails(lab.Call{Op: "rename", Path: m.Path("d"), Path2: m.Path("x")}, unix.EBUSY)
		other.Fails(lab.Call{Op: "rename", Path: m.Path("d/e"), Path2: m.Path("x")}, unix.EBUSY)
	}
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	renames := func(from, to string) {
		t.Helper()
		lab.Eventually(t, from+" is free", func() bool { // its lock may be given back late
			return other.Do(lab.Call{Op: "rename", Path: b.Path(from), Path2: b.Path(to)}).Errno == 0
		})
	}
	renames("d", "x")
	// Mount a still knows the directory by its old name.
	holder.Fails(lab.Call{Op: "open", Path: a.Path("d/e/f"), Flags: unix.O_WRONLY | unix.O_APPEND}, unix.ENOENT)
	fd = holder.Open(a.Path("x/e/f"), unix.O_WRONLY|unix.O_APPEND)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "two\n"})
	v.AwaitLocked("x/e/f")
	holder.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("x/e/f"); got != "one\ntwo\n" {
		t.Errorf("the file holds %q", got)
	}
	// A program whose working directory was renamed goes on working in it.
	holder.Must(lab.Call{Op: "chdir", Path: a.Path("x/e")})
	renames("x", "y")
	moved := holder.InTime(lab.Call{Op: "open", Path: "f", Flags: unix.O_WRONLY | unix.O_APPEND})
	if v.HasClients() && moved.Errno == unix.EBUSY {
		return // and its client does not know where to: no lock, no write
	}
	if moved.Errno != 0 {
		t.Fatalf("open: %v", moved.Err())
	}
	fd = moved.N
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "three\n"})
	v.AwaitLocked("y/e/f")
	holder.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("y/e/f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A parent is renamed, and another takes its place, while an open waits for a
// file below: by a node that does not use the view, as the worst case. The
// waiter writes to the file that its path names now.
func TestParentReplacedDuringWait(t *testing.T) {
	lab.Over(t, testParentReplacedDuringWait, lab.Local, lab.InLeases.ForLong(), lab.OverClients, lab.OnNetworkVolume)
}

func testParentReplacedDuringWait(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	for _, d := range []string{"d", "new"} {
		if err := os.Mkdir(filepath.Join(v.Source, d), 0o755); err != nil {
			t.Fatal(err)
		}
		v.Write(d+"/f", d+"\n")
	}
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("d/f"), unix.O_WRONLY)
	pending := waiter.Start(lab.Call{Op: "open", Path: b.Path("d/f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("d/f")
	for _, r := range [][2]string{{"d", "old"}, {"new", "d"}} {
		if err := os.Rename(filepath.Join(v.Source, r[0]), filepath.Join(v.Source, r[1])); err != nil {
			t.Fatal(err)
		}
	}
	holder.Must(lab.Call{Op: "close", FD: fd})
	opened := lab.Await(t, "open", pending)
	if opened.Errno != 0 {
		t.Fatalf("open: %v", opened.Err())
	}
	waiter.Must(lab.Call{Op: "write", FD: opened.N, Data: "me\n"})
	waiter.Must(lab.Call{Op: "close", FD: opened.N})
	if old, now := v.Read("old/f"), v.Read("d/f"); old != "d\n" || now != "new\nme\n" {
		t.Errorf("the old file holds %q, the new one %q", old, now)
	}
}

// A program whose open of a file ended without one, since its holder has removed
// it, opens another file by a name that its kernel remembers. Another mount has put
// the directory away since, and made a new one: the program gets the new one's file.
func TestDirectoryReplacedAfterAFailedOpen(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	two.Must(lab.Call{Op: "mkdir", Path: b.Path("d")})
	v.Write("d/y", "old\n")
	fd := two.Open(b.Path("d/x"), unix.O_WRONLY|unix.O_CREAT)
	pending := one.Start(lab.Call{Op: "open", Path: a.Path("d/x"), Flags: unix.O_WRONLY})
	v.WaitFor("d/x")
	two.Must(lab.Call{Op: "unlink", Path: b.Path("d/x")})
	two.Must(lab.Call{Op: "close", FD: fd})
	if r := lab.Await(t, "open", pending); r.Errno != unix.ENOENT {
		t.Fatalf("open of what was removed: %v, want ENOENT", r.Err())
	}

	// The lock that was kept for the open to come again.
	lab.Eventually(t, "nothing is locked", func() bool { return len(v.LS()) == 0 })
	one.Must(lab.Call{Op: "mode", Path: a.Path("d/y")}) // its kernel knows it now
	two.Must(lab.Call{Op: "rename", Path: b.Path("d"), Path2: b.Path("away")})
	two.Must(lab.Call{Op: "mkdir", Path: b.Path("d")})
	v.Write("d/y", "new\n")
	fd = one.Open(a.Path("d/y"), unix.O_WRONLY|unix.O_APPEND)
	one.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	one.Must(lab.Call{Op: "close", FD: fd})
	if away, now := v.Read("away/y"), v.Read("d/y"); away != "old\n" || now != "new\none\n" {
		t.Errorf("the file that was put away holds %q, the new one %q", away, now)
	}
}

// Another mount puts a directory away in which a program stands, and makes a new
// one. What the program opens from where it stands is there; what it opens by the
// directory's name, which its kernel still remembers, is in the new one, though the
// view has just seen where the old one is.
func TestDirectoryPutAwayUnderAProgram(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	for _, d := range []string{"d", "d/e"} {
		two.Must(lab.Call{Op: "mkdir", Path: b.Path(d)})
	}
	v.Write("d/e/f", "old\n")
	one.Must(lab.Call{Op: "chdir", Path: a.Path("d")})
	one.Must(lab.Call{Op: "mode", Path: a.Path("d/e/f")}) // its kernel knows it now
	two.Must(lab.Call{Op: "rename", Path: b.Path("d"), Path2: b.Path("away")})
	for _, d := range []string{"d", "d/e"} {
		two.Must(lab.Call{Op: "mkdir", Path: b.Path(d)})
	}
	v.Write("d/e/f", "new\n")
	for _, p := range [][2]string{{"there", "e/f"}, {"by name", a.Path("d/e/f")}, {"by dots and name", "../d/e/f"}, {"by dots", "e/../e/f"}} {
		fd := one.Open(p[1], unix.O_WRONLY|unix.O_APPEND)
		one.Must(lab.Call{Op: "write", FD: fd, Data: p[0] + "\n"})
		one.Must(lab.Call{Op: "close", FD: fd})
	}
	for file, want := range map[string][]string{"away/e/f": {"by dots", "old", "there"}, "d/e/f": {"by dots and name", "by name", "new"}} {
		got := strings.Split(strings.TrimSpace(v.Read(file)), "\n")
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
}

// A directory that another mount has removed, renamed or replaced is not listed in
// place of what has its name, though the kernel remembers it.
func TestDirectorySupplanted(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	rounds := 0
	for _, c := range []struct {
		what  string
		makes func(two *lab.Agent, d string)
		errno unix.Errno
	}{
		{"a new directory", func(two *lab.Agent, d string) {
			two.Must(lab.Call{Op: "mkdir", Path: b.Path(d)})
			v.Write(d+"/new", "")
		}, 0},
		{"a file", func(two *lab.Agent, d string) {
			two.Must(lab.Call{Op: "close", FD: two.Open(b.Path(d), unix.O_WRONLY|unix.O_CREAT)})
		}, unix.ENOTDIR},
		{"nothing", func(*lab.Agent, string) {}, unix.ENOENT},
	} {
		for _, away := range []string{"removed", "renamed", "renamed, and seen there", "renamed, and used by who stands there"} {
			t.Run(c.what+" where one was "+away, func(t *testing.T) {
				rounds++
				d, e := fmt.Sprint("d", rounds), fmt.Sprint("e", rounds)
				one, two, three := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
				two.Must(lab.Call{Op: "mkdir", Path: b.Path(d)})
				v.Write(d+"/old", "")
				three.Must(lab.Call{Op: "chdir", Path: a.Path(d)})
				seesInDirectory(one, a.Path(d), "old")
				if away == "removed" {
					two.Must(lab.Call{Op: "unlink", Path: b.Path(d + "/old")})
					two.Must(lab.Call{Op: "rmdir", Path: b.Path(d)})
				} else {
					two.Must(lab.Call{Op: "rename", Path: b.Path(d), Path2: b.Path(e)})
				}
				c.makes(two, d)
				if away == "renamed, and used by who stands there" && !v.HasClients() {
					three.Must(lab.Call{Op: "close", FD: three.Open("old", unix.O_WRONLY)})
				}
				if away == "renamed, and seen there" {
					seesInDirectory(three, a.Path(e), "old")
				}
				if c.errno != 0 {
					one.Fails(lab.Call{Op: "list", Path: a.Path(d)}, c.errno)
				} else {
					seesInDirectory(one, a.Path(d), "new")
				}
			})
		}
	}
}

// A program whose working directory another mount has moved lists that directory, whatever has its
// former name.
func TestMovedDirectoryIsListed(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	two.Must(lab.Call{Op: "mkdir", Path: b.Path("d")})
	v.Write("d/f", "")
	one.Must(lab.Call{Op: "chdir", Path: a.Path("d")})
	two.Must(lab.Call{Op: "rename", Path: b.Path("d"), Path2: b.Path("e")})
	v.Write("d", "a file")
	for range 3 {
		seesInDirectory(one, ".", "f")
	}
	seesInDirectory(one, a.Path("e"), "f")
	seesInDirectory(one, ".", "f")
	if !v.HasClients() { // else the client does not know where it is
		one.Must(lab.Call{Op: "close", FD: one.Open("f", unix.O_WRONLY)})
	}
	seesInDirectory(one, ".", "f")
	one.Fails(lab.Call{Op: "list", Path: a.Path("d")}, unix.ENOTDIR)
	seesInDirectory(one, ".", "f")
}

// seesInDirectory has the agent list a directory.
func seesInDirectory(a *lab.Agent, path, want string) {
	a.T.Helper()
	if r := a.InTime(lab.Call{Op: "list", Path: path}); r.Errno != 0 || r.Data != want {
		a.T.Errorf("%s lists %q, %v; want %q", path, r.Data, r.Err(), want)
	}
}

// A file that another mount has put away is linked by a descriptor, wherever it is
// now; by its former name what has that is linked, though the kernel remembers it.
func TestLinkOfWhatWasPutAway(t *testing.T) {
	t.Parallel()
	for what, putAway := range map[string]func(two *lab.Agent, b *lab.Mount){
		"renamed": func(two *lab.Agent, b *lab.Mount) {
			two.Must(lab.Call{Op: "rename", Path: b.Path("f"), Path2: b.Path("old")})
			two.Must(lab.Call{Op: "rename", Path: b.Path("g"), Path2: b.Path("f")})
		},
		"exchanged": func(two *lab.Agent, b *lab.Mount) {
			two.Must(lab.Call{Op: "exchange", Path: b.Path("f"), Path2: b.Path("g")})
		},
		"replaced": func(two *lab.Agent, b *lab.Mount) {
			two.Must(lab.Call{Op: "rename", Path: b.Path("g"), Path2: b.Path("f")})
		},
	} {
		for _, seen := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, seen: %v", what, seen), func(t *testing.T) {
				v := lab.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
				a, b := v.Mount("a"), v.Mount("b")
				one, two := lab.NewAgent(t), lab.NewAgent(t)
				v.Write("f", "old")
				v.Write("g", "new")
				fd := one.Open(a.Path("f"), unix.O_RDONLY)
				putAway(two, b)
				if seen {
					one.Do(lab.Call{Op: "mode", Path: a.Path("old")})
					one.Do(lab.Call{Op: "mode", Path: a.Path("g")})
				}
				one.Must(lab.Call{Op: "link", Path: a.Path("f"), Path2: a.Path("by name")})
				if got := v.Read("by name"); got != "new" {
					t.Errorf("by its name %q was linked", got)
				}
				if v.HasClients() && (!seen || what == "replaced") {
					return // its client does not know where it is
				}
				byFD := lab.Call{Op: "name", FD: fd, Path: a.Path("by descriptor")}
				if what == "replaced" {
					one.Fails(byFD, unix.ENOENT)
					return
				}
				for range 2 {
					one.Must(byFD)
					if got := v.Read("by descriptor"); got != "old" {
						t.Errorf("by a descriptor %q was linked", got)
					}
					byFD.Path = a.Path("by descriptor") + " again"
				}
			})
		}
	}
}

// A file whose directory was renamed, and is reached by a symbolic link of its former name, is linked
// under the lock of its path, and not of the path through the link.
func TestLinkOfWhatIsBehindASymbolicLink(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--name-wait", "100ms")
	a, b := v.Mount("a"), v.Mount("b")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	for _, dir := range []string{"z", "c"} {
		if err := os.Mkdir(v.InSource(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	v.Write("z/b", "")
	fd := one.Open(a.Path("z/b"), unix.O_RDONLY)
	two.Must(lab.Call{Op: "rename", Path: b.Path("z/b"), Path2: b.Path("c/b")})
	one.Must(lab.Call{Op: "close", FD: one.Open(lab.ProcFD(fd), unix.O_WRONLY)}) // its mount finds it as c/b
	two.OnceFree(lab.Call{Op: "rename", Path: b.Path("c"), Path2: b.Path("d")})
	if err := os.Symlink("d", v.InSource("c")); err != nil {
		t.Fatal(err)
	}
	writer := two.OnceFree(lab.Call{Op: "open", Path: b.Path("d/b"), Flags: unix.O_WRONLY})
	one.Fails(lab.Call{Op: "name", FD: fd, Path: a.Path("to")}, unix.EBUSY)
	if _, err := os.Lstat(v.InSource("to")); err == nil {
		t.Error("it was linked while it was open for write")
	}
	two.Must(lab.Call{Op: "close", FD: writer})
	one.OnceFree(lab.Call{Op: "name", FD: fd, Path: a.Path("to")})
}
