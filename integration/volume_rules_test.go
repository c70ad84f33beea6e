package integration

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// A program opens a name, or finds that there is none. Then a program of another client
// changes what has the name, and the first opens it again, to read or to write: it gets
// what is there now. (docs/SEMANTICS.md, rules 6 and 15.)
func TestNamesMadeElsewhere(t *testing.T) { over(t, testNamesMadeElsewhere, local, onNetworkVolume) }

func testNamesMadeElsewhere(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	here, there := newAgent(t), newAgent(t)
	save := func(path, data string) {
		t.Helper()
		fd := there.open(path, wronly|create|trunc)
		there.must(call{Op: "write", FD: fd, Data: data})
		there.must(call{Op: "close", FD: fd})
	}
	for what, change := range map[string]func(name string) (want string){
		"made": func(name string) string {
			there.must(call{Op: "unlink", Path: b.path(name)})
			here.fails(call{Op: "open", Path: a.path(name)}, unix.ENOENT)
			save(b.path(name), "made anew")
			return "made anew"
		},
		"removed and made": func(name string) string {
			there.must(call{Op: "unlink", Path: b.path(name)})
			save(b.path(name), "another")
			return "another"
		},
		"overwritten": func(name string) string {
			fd := there.open(b.path(name), wronly)
			there.must(call{Op: "write", FD: fd, Data: "FIRST"})
			there.must(call{Op: "close", FD: fd})
			return "FIRST"
		},
		"appended to": func(name string) string {
			fd := there.open(b.path(name), wronly|appends)
			there.must(call{Op: "write", FD: fd, Data: " and more"})
			there.must(call{Op: "close", FD: fd})
			return "first and more"
		},
		"truncated": func(name string) string {
			there.must(call{Op: "truncate", Path: b.path(name), Off: 2})
			return "fi"
		},
		"replaced": func(name string) string {
			save(b.path(name+".new"), "other")
			there.must(call{Op: "rename", Path: b.path(name + ".new"), Path2: b.path(name)})
			return "other"
		},
		"exchanged": func(name string) string {
			save(b.path(name+".new"), "2nd")
			there.must(call{Op: "rename", Path: b.path(name), Path2: b.path(name + ".old")})
			there.must(call{Op: "rename", Path: b.path(name + ".new"), Path2: b.path(name)})
			here.sees(a.path(name+".old"), "first")
			return "2nd"
		},
		"linked": func(name string) string {
			save(b.path(name+".other"), "of two names")
			there.must(call{Op: "unlink", Path: b.path(name)})
			there.must(call{Op: "link", Path: b.path(name + ".other"), Path2: b.path(name)})
			return "of two names"
		},
	} {
		t.Run(what, func(t *testing.T) {
			bad := 0
			const rounds = 25
			for i := range rounds {
				name := strings.ReplaceAll(fmt.Sprint(what, i), " ", "-")
				save(b.path(name), "first")
				here.sees(a.path(name), "first")
				want := change(name)
				flags := []int{rdonly, rdwr | appends}[i%2]
				r := here.do(call{Op: "open", Path: a.path(name), Flags: flags})
				if r.Errno != 0 {
					t.Errorf("round %d: open: %v", i, r.Errno)
					bad++
					continue
				}
				if got := here.do(call{Op: "pread", FD: r.N, N: 100}); got.Data != want {
					t.Errorf("round %d: read %q, %v, want %q", i, got.Data, got.Err(), want)
					bad++
				}
				if flags != rdonly {
					here.must(call{Op: "write", FD: r.N, Data: "!"})
					want += "!"
				}
				here.must(call{Op: "close", FD: r.N})
				there.sees(b.path(name), want)
			}
			if bad > 0 {
				t.Errorf("%s: %d of %d", what, bad, rounds)
			}
		})
	}
}

// Programs of two clients make, rename and remove names in the same directories: what
// they are told fits, and in the end all find the same.
func TestDirectoriesChangedElsewhere(t *testing.T) {
	over(t, testDirectoriesChangedElsewhere, local, onNetworkVolume)
}

func testDirectoriesChangedElsewhere(t *testing.T, on setup) {
	v := on.newVolume(t, "--name-wait", "1m")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	output(t, "mkdir", "-p", a.path("d/e"))
	allowed := []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ENOTDIR, unix.EISDIR}
	everywhere(2, func(m *mount, w int) {
		for i := range 40 {
			dir, name := m.path([]string{"d", "d/e"}[i%2]), fmt.Sprint("n", (i+w)%5)
			path := filepath.Join(dir, name)
			var err error
			switch i % 4 {
			case 0:
				err = os.Mkdir(path, 0o755)
			case 1:
				err = os.WriteFile(path, []byte(m.name), 0o644)
			case 2:
				err = os.Rename(path, filepath.Join(m.path("d"), fmt.Sprint("r", w)))
			case 3:
				err = os.Remove(path)
			}
			if err != nil && !slices.ContainsFunc(allowed, func(e error) bool { return errors.Is(err, e) }) {
				t.Errorf("%s: %v", m.name, err)
			}
		}
	}, a, b)
	list := func(dir string) (names []string) {
		if err := filepath.WalkDir(filepath.Join(dir, "d"), func(path string, e fs.DirEntry, err error) error {
			if err == nil {
				names = append(names, strings.TrimPrefix(path, dir)+" "+e.Type().String())
			}
			return err
		}); err != nil {
			t.Error(err)
		}
		return names
	}
	want := list(v.source)
	for _, m := range []*mount{a, b} {
		if got := list(m.dir); !slices.Equal(got, want) {
			t.Errorf("%s lists %v, the volume %v", m.name, got, want)
		}
	}
	run(t, "rm", "-r", b.path("d"))
	eventually(t, "what was removed is gone elsewhere", func() bool { // a kernel believes names for a second
		_, err := os.Stat(a.path("d"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// What one client's program has written is there for the next writer and reader of
// another: by a mapping, behind a hole, and of 32 MiB. (docs/SEMANTICS.md, rules 6 and 15.)
func TestBytesWrittenElsewhere(t *testing.T) {
	over(t, testBytesWrittenElsewhere, local, onNetworkVolume)
}

func testBytesWrittenElsewhere(t *testing.T, on setup) {
	v := on.newVolume(t, "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	t.Run("mapping", func(t *testing.T) {
		v.write("m", strings.Repeat("-", 8192))
		for i := range 5 {
			for _, w := range []struct {
				p    *agent
				m, o *mount
				off  int64
			}{{p, a, b, 0}, {q, b, a, 5000}} {
				text := fmt.Sprintf("%s%03d", w.m.name, i)
				fd := w.p.open(w.m.path("m"), rdwr)
				w.p.must(call{Op: "mmap", FD: fd, N: 8192})
				w.p.must(call{Op: "store", FD: fd, Off: w.off, Data: text})
				w.p.must(call{Op: "munmap", FD: fd})
				w.p.must(call{Op: "close", FD: fd})
				r := w.p.open(w.o.path("m"), rdonly)
				if got := w.p.do(call{Op: "pread", FD: r, Off: w.off, N: 4}); got.Data != text {
					t.Errorf("round %d: %q, want %q", i, got.Data, text)
				}
				w.p.must(call{Op: "close", FD: r})
			}
		}
	})
	t.Run("hole", func(t *testing.T) {
		fd := p.open(a.path("h"), rdwr|create)
		p.must(call{Op: "pwrite", FD: fd, Off: 5 << 20, Data: "end"})
		p.must(call{Op: "close", FD: fd})
		fd = q.open(b.path("h"), rdwr)
		q.must(call{Op: "pwrite", FD: fd, Off: 2 << 20, Data: "middle"})
		q.must(call{Op: "close", FD: fd})
		got, err := os.ReadFile(a.path("h"))
		want := make([]byte, 5<<20+3)
		copy(want[2<<20:], "middle")
		copy(want[5<<20:], "end")
		if err != nil || string(got) != string(want) {
			t.Errorf("%d bytes that are others, %v", len(got), err)
		}
	})
	t.Run("big", func(t *testing.T) {
		block := make([]byte, 32<<20)
		for i := range block {
			block[i] = byte(i>>12 ^ i)
		}
		var want []byte
		for _, w := range []struct{ by, other *mount }{{a, b}, {b, a}} {
			f, err := os.OpenFile(w.by.path("big"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.Write(block); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			want = append(want, block...)
			got, err := os.ReadFile(w.other.path("big"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("%s reads %d bytes, %v, want %d", w.other.name, len(got), err, len(want))
			}
		}
	})
}

// The server stands still for 20 s while programs of both clients append. It costs them
// a pause: each line that was told to be written is there once.
func TestVolumeServerFrozen(t *testing.T) { over(t, testVolumeServerFrozen, onNetworkVolume) }

func testVolumeServerFrozen(t *testing.T, on setup) {
	labFault(t, "thaw server") // or it is not to be had
	v := on.newVolume(t, "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	appending := func(m *mount, who string) call {
		return call{Op: "repeat", N: 20, Calls: []call{
			{Op: "open", Path: m.path("log"), Flags: wronly | create | appends},
			{Op: "write", FD: opened, Data: who + "\n"},
			{Op: "close", FD: opened},
		}}
	}
	p.must(appending(a, "before"))
	labFault(t, "freeze server")
	t.Cleanup(func() { labFault(t, "thaw server") })
	one, two := p.start(appending(a, "a")), q.start(appending(b, "b"))
	newAgent(t).must(call{Op: "pause", N: 20_000}) // the fault itself
	labFault(t, "thaw server")
	for _, pending := range []<-chan result{one, two} {
		if r := await(t, "appends beside a frozen server", pending); len(r.Failed) > 0 {
			t.Errorf("failed: %v", r.Failed)
		}
	}
	for _, m := range []*mount{a, b} {
		got, err := os.ReadFile(m.path("log"))
		for _, who := range []string{"before", "a", "b"} {
			if n := strings.Count("\n"+strings.ReplaceAll(string(got), "\n", "\n\n"), "\n"+who+"\n"); n != 20 {
				t.Errorf("%s sees %d lines of %s, %v, want 20", m.name, n, who, err)
			}
		}
	}
}

// An operator breaks a lock while the server hangs, and with it a write of the holder's.
// The next writer's bytes are behind what was written, and stay.
// (docs/SEMANTICS.md, rule 25.)
func TestBrokenWhileTheServerHangs(t *testing.T) {
	over(t, testBrokenWhileTheServerHangs, onNetworkVolume)
}

func testBrokenWhileTheServerHangs(t *testing.T, on setup) {
	labFault(t, "thaw server")
	v := on.newVolume(t, "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	holder, next := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly|appends)
	holder.must(call{Op: "write", FD: fd, Data: "one\n"})
	holder.must(call{Op: "fsync", FD: fd})
	waiting := next.start(call{Op: "open", Path: b.path("f"), Flags: wronly | appends})
	v.waitFor("f")
	labFault(t, "freeze server")
	t.Cleanup(func() { labFault(t, "thaw server") })
	writing := holder.start(call{Op: "write through", FD: fd, Off: 4, Data: "late\n"})
	eventually(t, "the write is under way", func() bool { return holder.within(unix.SYS_PWRITEV2) })
	cmd := v.command("break", "--endpoints", v.endpoint(), "--name", filepath.Base(v.source), "--reason", "test", "f")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the holder's mount is asked", func() bool { return strings.Contains(a.log.String(), "break") })
	labFault(t, "thaw server")
	broken := cmd.Wait()
	wrote := await(t, "the write", writing)
	if broken != nil { // it took longer than the TTL: the holder keeps the lock
		t.Logf("lockfs break: %v", broken)
	}
	holder.do(call{Op: "close", FD: fd})
	r := await(t, "the next open", waiting)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	next.must(call{Op: "write", FD: r.N, Data: "next\n"})
	next.must(call{Op: "close", FD: r.N})
	want := []string{"one\nlate\nnext\n"}
	if wrote.Errno != 0 {
		want = []string{"one\nnext\n", want[0]}
	}
	for _, m := range []*mount{a, b} {
		if got, err := os.ReadFile(m.path("f")); err != nil || !slices.Contains(want, string(got)) {
			t.Errorf("%s sees %q, %v, want %q; the write: %v", m.name, got, err, want, wrote.Err())
		}
	}
}

// A mount loses its session while the server hangs, and with it the open of the next
// writer. The loser writes no more, also when the server is there again.
// (docs/SEMANTICS.md, rule 10.)
func TestLostWhileTheServerHangs(t *testing.T) { over(t, testLostWhileTheServerHangs, onNetworkVolume) }

func testLostWhileTheServerHangs(t *testing.T, on setup) {
	labFault(t, "thaw server")
	v := on.newVolume(t, "--wait", "-1")
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	holder, next := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly|appends)
	holder.must(call{Op: "write", FD: fd, Data: "one\n"})
	holder.must(call{Op: "fsync", FD: fd})
	session := v.ls()[0].Session
	waiting := next.start(call{Op: "open", Path: b.path("f"), Flags: wronly | appends})
	v.waitFor("f")
	labFault(t, "freeze server")
	t.Cleanup(func() { labFault(t, "thaw server") })
	v.revokeSession(session)
	eventually(t, "the mount knows", func() bool { return strings.Contains(a.log.String(), "lock session lost") })
	late := holder.start(call{Op: "write", FD: fd, Data: "late\n"})
	// The volume itself cannot be asked now which lock service it has.
	eventually(t, "the next writer is granted the lock", func() bool {
		es := v.lsOf("--endpoints", v.endpoint(), "--name", filepath.Base(v.source))
		return len(es) == 1 && es[0].PID == next.pid() && es[0].State == "held"
	})
	labFault(t, "thaw server")
	if r := await(t, "the write after the loss", late); r.Errno != unix.EIO {
		t.Errorf("a write after the loss: %v, want EIO", r.Err())
	}
	r := await(t, "the next open", waiting)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	next.must(call{Op: "write", FD: r.N, Data: "next\n"})
	holder.fails(call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
	holder.fails(call{Op: "close", FD: fd}, unix.EIO)
	next.must(call{Op: "close", FD: r.N})
	for _, m := range []*mount{a, b} {
		if got, err := os.ReadFile(m.path("f")); err != nil || string(got) != "one\nnext\n" {
			t.Errorf("%s sees %q, %v", m.name, got, err)
		}
	}
}

// The client of one mount is killed and mounted again. What its programs had open is lost,
// and is no longer in others' way; the view finds the volume again by itself, and what was
// written and closed is there.
func TestVolumeClientMountedAgain(t *testing.T) {
	over(t, testVolumeClientMountedAgain, onNetworkVolume)
}

func testVolumeClientMountedAgain(t *testing.T, on setup) {
	labFault(t, "thaw server")
	v := on.newVolume(t, "--wait", "-1")
	v.inMemory()
	b := v.mount("b") // over the client that lives: the etcd's mount is over it as well
	a := v.mount("a")
	client := 0
	for !strings.HasPrefix(v.client("a"), networkClients()[client]+"/") {
		client++
	}
	p, q := newAgent(t), newAgent(t)
	fd := p.open(a.path("f"), wronly|create|appends)
	p.must(call{Op: "write", FD: fd, Data: "one\n"})
	p.must(call{Op: "close", FD: fd})
	held := p.open(a.path("held"), wronly|create)
	start := sync.OnceFunc(func() { labFault(t, fmt.Sprint("start client ", client)) })
	labFault(t, fmt.Sprint("kill client ", client))
	t.Cleanup(start) // or the tests that follow have no volume
	if r := p.do(call{Op: "open", Path: a.path("f"), Flags: wronly | appends}); r.Errno == 0 {
		t.Error("a file is opened where there is no volume")
	}
	q.sees(b.path("f"), "one\n")
	start()
	eventually(t, "the view has found the volume again", func() bool {
		r := p.do(call{Op: "open", Path: a.path("f"), Flags: wronly | appends | nonblock})
		if r.Errno == 0 {
			p.must(call{Op: "write", FD: r.N, Data: "two\n"})
			p.must(call{Op: "close", FD: r.N})
		}
		return r.Errno == 0
	})
	if r := p.do(call{Op: "write", FD: held, Data: "x"}); r.Errno == 0 {
		t.Error("what was open is written to")
	}
	p.do(call{Op: "close", FD: held})
	fd = q.open(b.path("held"), wronly|appends)
	q.must(call{Op: "write", FD: fd, Data: "theirs"})
	q.must(call{Op: "close", FD: fd})
	q.sees(b.path("f"), "one\ntwo\n")
	p.sees(a.path("held"), "theirs")
}
