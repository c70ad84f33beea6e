package semantics

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

	"github.com/lockfs/lockfs/integration/lab"
)

// A program opens a name, or finds that there is none. Then a program of another client
// changes what has the name, and the first opens it again, to read or to write: it gets
// what is there now. (docs/SEMANTICS.md, rules 6 and 15.)
func TestNamesMadeElsewhere(t *testing.T) {
	lab.Over(t, testNamesMadeElsewhere, lab.Local, lab.OnNetworkVolume)
}

func testNamesMadeElsewhere(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	here, there := lab.NewAgent(t), lab.NewAgent(t)
	save := func(path, data string) {
		t.Helper()
		fd := there.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
		there.Must(lab.Call{Op: "write", FD: fd, Data: data})
		there.Must(lab.Call{Op: "close", FD: fd})
	}
	for what, change := range map[string]func(name string) (want string){
		"made": func(name string) string {
			there.Must(lab.Call{Op: "unlink", Path: b.Path(name)})
			here.Fails(lab.Call{Op: "open", Path: a.Path(name)}, unix.ENOENT)
			save(b.Path(name), "made anew")
			return "made anew"
		},
		"removed and made": func(name string) string {
			there.Must(lab.Call{Op: "unlink", Path: b.Path(name)})
			save(b.Path(name), "another")
			return "another"
		},
		"overwritten": func(name string) string {
			fd := there.Open(b.Path(name), unix.O_WRONLY)
			there.Must(lab.Call{Op: "write", FD: fd, Data: "FIRST"})
			there.Must(lab.Call{Op: "close", FD: fd})
			return "FIRST"
		},
		"appended to": func(name string) string {
			fd := there.Open(b.Path(name), unix.O_WRONLY|unix.O_APPEND)
			there.Must(lab.Call{Op: "write", FD: fd, Data: " and more"})
			there.Must(lab.Call{Op: "close", FD: fd})
			return "first and more"
		},
		"truncated": func(name string) string {
			there.Must(lab.Call{Op: "truncate", Path: b.Path(name), Off: 2})
			return "fi"
		},
		"replaced": func(name string) string {
			save(b.Path(name+".new"), "other")
			there.Must(lab.Call{Op: "rename", Path: b.Path(name + ".new"), Path2: b.Path(name)})
			return "other"
		},
		"exchanged": func(name string) string {
			save(b.Path(name+".new"), "2nd")
			there.Must(lab.Call{Op: "rename", Path: b.Path(name), Path2: b.Path(name + ".old")})
			there.Must(lab.Call{Op: "rename", Path: b.Path(name + ".new"), Path2: b.Path(name)})
			here.Sees(a.Path(name+".old"), "first")
			return "2nd"
		},
		"linked": func(name string) string {
			save(b.Path(name+".other"), "of two names")
			there.Must(lab.Call{Op: "unlink", Path: b.Path(name)})
			there.Must(lab.Call{Op: "link", Path: b.Path(name + ".other"), Path2: b.Path(name)})
			return "of two names"
		},
	} {
		t.Run(what, func(t *testing.T) {
			bad := 0
			const rounds = 25
			for i := range rounds {
				name := strings.ReplaceAll(fmt.Sprint(what, i), " ", "-")
				save(b.Path(name), "first")
				here.Sees(a.Path(name), "first")
				want := change(name)
				flags := []int{unix.O_RDONLY, unix.O_RDWR | unix.O_APPEND}[i%2]
				r := here.Do(lab.Call{Op: "open", Path: a.Path(name), Flags: flags})
				if r.Errno != 0 {
					t.Errorf("round %d: open: %v", i, r.Errno)
					bad++
					continue
				}
				if got := here.Do(lab.Call{Op: "pread", FD: r.N, N: 100}); got.Data != want {
					t.Errorf("round %d: read %q, %v, want %q", i, got.Data, got.Err(), want)
					bad++
				}
				if flags != unix.O_RDONLY {
					here.Must(lab.Call{Op: "write", FD: r.N, Data: "!"})
					want += "!"
				}
				here.Must(lab.Call{Op: "close", FD: r.N})
				there.Sees(b.Path(name), want)
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
	lab.Over(t, testDirectoriesChangedElsewhere, lab.Local, lab.OnNetworkVolume)
}

func testDirectoriesChangedElsewhere(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	lab.Output(t, "mkdir", "-p", a.Path("d/e"))
	allowed := []error{unix.ENOENT, unix.EEXIST, unix.ENOTEMPTY, unix.EBUSY, unix.ENOTDIR, unix.EISDIR}
	lab.Everywhere(2, func(m *lab.Mount, w int) {
		for i := range 40 {
			dir, name := m.Path([]string{"d", "d/e"}[i%2]), fmt.Sprint("n", (i+w)%5)
			path := filepath.Join(dir, name)
			var err error
			switch i % 4 {
			case 0:
				err = os.Mkdir(path, 0o755)
			case 1:
				for range 3 { // ESTALE is rare, and means that the name was replaced faster than the kernel could follow
					if err = os.WriteFile(path, []byte(m.Name), 0o644); !errors.Is(err, unix.ESTALE) {
						break
					}
				}
			case 2:
				err = os.Rename(path, filepath.Join(m.Path("d"), fmt.Sprint("r", w)))
			case 3:
				err = os.Remove(path)
			}
			if err != nil && !slices.ContainsFunc(allowed, func(e error) bool { return errors.Is(err, e) }) {
				t.Errorf("%s: %v", m.Name, err)
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
	want := list(v.Source)
	for _, m := range []*lab.Mount{a, b} {
		if got := list(m.Dir); !slices.Equal(got, want) {
			t.Errorf("%s lists %v, the volume %v", m.Name, got, want)
		}
	}
	lab.Run(t, "rm", "-r", b.Path("d"))
	lab.Eventually(t, "what was removed is gone elsewhere", func() bool { // a kernel believes names for a second
		_, err := os.Stat(a.Path("d"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// What one client's program has written is there for the next writer and reader of
// another: by a mapping, behind a hole, and of 32 MiB. (docs/SEMANTICS.md, rules 6 and 15.)
func TestBytesWrittenElsewhere(t *testing.T) {
	lab.Over(t, testBytesWrittenElsewhere, lab.Local, lab.OnNetworkVolume)
}

func testBytesWrittenElsewhere(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	t.Run("mapping", func(t *testing.T) {
		v.Write("m", strings.Repeat("-", 8192))
		for i := range 5 {
			for _, w := range []struct {
				p    *lab.Agent
				m, o *lab.Mount
				off  int64
			}{{p, a, b, 0}, {q, b, a, 5000}} {
				text := fmt.Sprintf("%s%03d", w.m.Name, i)
				fd := w.p.Open(w.m.Path("m"), unix.O_RDWR)
				w.p.Must(lab.Call{Op: "mmap", FD: fd, N: 8192})
				w.p.Must(lab.Call{Op: "store", FD: fd, Off: w.off, Data: text})
				w.p.Must(lab.Call{Op: "munmap", FD: fd})
				w.p.Must(lab.Call{Op: "close", FD: fd})
				r := w.p.Open(w.o.Path("m"), unix.O_RDONLY)
				if got := w.p.Do(lab.Call{Op: "pread", FD: r, Off: w.off, N: 4}); got.Data != text {
					t.Errorf("round %d: %q, want %q", i, got.Data, text)
				}
				w.p.Must(lab.Call{Op: "close", FD: r})
			}
		}
	})
	t.Run("hole", func(t *testing.T) {
		fd := p.Open(a.Path("h"), unix.O_RDWR|unix.O_CREAT)
		p.Must(lab.Call{Op: "pwrite", FD: fd, Off: 5 << 20, Data: "end"})
		p.Must(lab.Call{Op: "close", FD: fd})
		fd = q.Open(b.Path("h"), unix.O_RDWR)
		q.Must(lab.Call{Op: "pwrite", FD: fd, Off: 2 << 20, Data: "middle"})
		q.Must(lab.Call{Op: "close", FD: fd})
		got, err := os.ReadFile(a.Path("h"))
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
		for _, w := range []struct{ by, other *lab.Mount }{{a, b}, {b, a}} {
			f, err := os.OpenFile(w.by.Path("big"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
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
			got, err := os.ReadFile(w.other.Path("big"))
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("%s reads %d bytes, %v, want %d", w.other.Name, len(got), err, len(want))
			}
		}
	})
}

// The server stands still for 20 s while programs of both clients append. It costs them
// a pause: each line that was told to be written is there once.
func TestVolumeServerFrozen(t *testing.T) { lab.Over(t, testVolumeServerFrozen, lab.OnNetworkVolume) }

func testVolumeServerFrozen(t *testing.T, on lab.Setup) {
	lab.Fault(t, "thaw server") // or it is not to be had
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	appending := func(m *lab.Mount, who string) lab.Call {
		return lab.Call{Op: "repeat", N: 20, Calls: []lab.Call{
			{Op: "open", Path: m.Path("log"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND},
			{Op: "write", FD: lab.Opened, Data: who + "\n"},
			{Op: "close", FD: lab.Opened},
		}}
	}
	p.Must(appending(a, "before"))
	lab.Fault(t, "freeze server")
	t.Cleanup(func() { lab.Fault(t, "thaw server") })
	one, two := p.Start(appending(a, "a")), q.Start(appending(b, "b"))
	lab.NewAgent(t).Must(lab.Call{Op: "pause", N: 20_000}) // the fault itself
	lab.Fault(t, "thaw server")
	for _, pending := range []<-chan lab.Result{one, two} {
		if r := lab.Await(t, "appends beside a frozen server", pending); len(r.Failed) > 0 {
			t.Errorf("failed: %v", r.Failed)
		}
	}
	for _, m := range []*lab.Mount{a, b} {
		got, err := os.ReadFile(m.Path("log"))
		for _, who := range []string{"before", "a", "b"} {
			if n := strings.Count("\n"+strings.ReplaceAll(string(got), "\n", "\n\n"), "\n"+who+"\n"); n != 20 {
				t.Errorf("%s sees %d lines of %s, %v, want 20", m.Name, n, who, err)
			}
		}
	}
}

// An operator breaks a lock while the server hangs, and with it a write of the holder's.
// The next writer's bytes are behind what was written, and stay.
// (docs/SEMANTICS.md, rule 25.)
func TestBrokenWhileTheServerHangs(t *testing.T) {
	lab.Over(t, testBrokenWhileTheServerHangs, lab.OnNetworkVolume)
}

func testBrokenWhileTheServerHangs(t *testing.T, on lab.Setup) {
	lab.Fault(t, "thaw server")
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder, next := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	holder.Must(lab.Call{Op: "fsync", FD: fd})
	waiting := next.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("f")
	lab.Fault(t, "freeze server")
	t.Cleanup(func() { lab.Fault(t, "thaw server") })
	writing := holder.Start(lab.Call{Op: "write through", FD: fd, Off: 4, Data: "late\n"})
	lab.Eventually(t, "the write is under way", func() bool { return holder.Within(unix.SYS_PWRITEV2) })
	cmd := v.Command("break", "--endpoints", v.Endpoint(), "--name", filepath.Base(v.Source), "--reason", "test", "f")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the holder's mount is asked", func() bool { return strings.Contains(a.Log.String(), "break") })
	lab.Fault(t, "thaw server")
	broken := cmd.Wait()
	wrote := lab.Await(t, "the write", writing)
	if broken != nil { // it took longer than the TTL: the holder keeps the lock
		t.Logf("lockfs break: %v", broken)
	}
	holder.Do(lab.Call{Op: "close", FD: fd})
	r := lab.Await(t, "the next open", waiting)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	next.Must(lab.Call{Op: "write", FD: r.N, Data: "next\n"})
	next.Must(lab.Call{Op: "close", FD: r.N})
	want := []string{"one\nlate\nnext\n"}
	if wrote.Errno != 0 {
		want = []string{"one\nnext\n", want[0]}
	}
	for _, m := range []*lab.Mount{a, b} {
		if got, err := os.ReadFile(m.Path("f")); err != nil || !slices.Contains(want, string(got)) {
			t.Errorf("%s sees %q, %v, want %q; the write: %v", m.Name, got, err, want, wrote.Err())
		}
	}
}

// A mount loses its session while the server hangs, and with it the open of the next
// writer. The loser writes no more, also when the server is there again.
// (docs/SEMANTICS.md, rule 10.)
func TestLostWhileTheServerHangs(t *testing.T) {
	lab.Over(t, testLostWhileTheServerHangs, lab.OnNetworkVolume)
}

func testLostWhileTheServerHangs(t *testing.T, on lab.Setup) {
	lab.Fault(t, "thaw server")
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder, next := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	holder.Must(lab.Call{Op: "fsync", FD: fd})
	session := v.LS()[0].Session
	waiting := next.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})
	v.WaitFor("f")
	lab.Fault(t, "freeze server")
	t.Cleanup(func() { lab.Fault(t, "thaw server") })
	v.RevokeSession(session)
	lab.Eventually(t, "the mount knows", func() bool { return strings.Contains(a.Log.String(), "lock session lost") })
	late := holder.Start(lab.Call{Op: "write", FD: fd, Data: "late\n"})
	// The volume itself cannot be asked now which lock service it has.
	lab.Eventually(t, "the next writer is granted the lock", func() bool {
		es := v.LSOf("--endpoints", v.Endpoint(), "--name", filepath.Base(v.Source))
		return len(es) == 1 && es[0].PID == next.PID() && es[0].State == "held"
	})
	lab.Fault(t, "thaw server")
	if r := lab.Await(t, "the write after the loss", late); r.Errno != unix.EIO {
		t.Errorf("a write after the loss: %v, want EIO", r.Err())
	}
	r := lab.Await(t, "the next open", waiting)
	if r.Errno != 0 {
		t.Fatalf("open: %v", r.Errno)
	}
	next.Must(lab.Call{Op: "write", FD: r.N, Data: "next\n"})
	holder.Fails(lab.Call{Op: "write", FD: fd, Data: "later\n"}, unix.EIO)
	holder.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	next.Must(lab.Call{Op: "close", FD: r.N})
	for _, m := range []*lab.Mount{a, b} {
		if got, err := os.ReadFile(m.Path("f")); err != nil || string(got) != "one\nnext\n" {
			t.Errorf("%s sees %q, %v", m.Name, got, err)
		}
	}
}

// The client of one mount is killed and mounted again. What its programs had open is lost,
// and is no longer in others' way; the view finds the volume again by itself, and what was
// written and closed is there.
func TestVolumeClientMountedAgain(t *testing.T) {
	lab.Over(t, testVolumeClientMountedAgain, lab.OnNetworkVolume)
}

func testVolumeClientMountedAgain(t *testing.T, on lab.Setup) {
	lab.Fault(t, "thaw server")
	v := on.NewVolume(t, "--wait", "-1")
	b := v.Mount("b") // over the client that lives: the etcd's mount is over it as well
	a := v.Mount("a")
	client := 0
	for !strings.HasPrefix(v.Client("a"), lab.NetworkClients()[client]+"/") {
		client++
	}
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "one\n"})
	p.Must(lab.Call{Op: "close", FD: fd})
	held := p.Open(a.Path("held"), unix.O_WRONLY|unix.O_CREAT)
	start := sync.OnceFunc(func() { lab.Fault(t, fmt.Sprint("start client ", client)) })
	lab.Fault(t, fmt.Sprint("kill client ", client))
	t.Cleanup(start) // or the tests that follow have no volume
	if r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND}); r.Errno == 0 {
		t.Error("a file is opened where there is no volume")
	}
	q.Sees(b.Path("f"), "one\n")
	start()
	lab.Eventually(t, "the view has found the volume again", func() bool {
		r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND | unix.O_NONBLOCK})
		if r.Errno == 0 {
			p.Must(lab.Call{Op: "write", FD: r.N, Data: "two\n"})
			p.Must(lab.Call{Op: "close", FD: r.N})
		}
		return r.Errno == 0
	})
	if r := p.Do(lab.Call{Op: "write", FD: held, Data: "x"}); r.Errno == 0 {
		t.Error("what was open is written to")
	}
	p.Do(lab.Call{Op: "close", FD: held})
	fd = q.Open(b.Path("held"), unix.O_WRONLY|unix.O_APPEND)
	q.Must(lab.Call{Op: "write", FD: fd, Data: "theirs"})
	q.Must(lab.Call{Op: "close", FD: fd})
	q.Sees(b.Path("f"), "one\ntwo\n")
	p.Sees(a.Path("held"), "theirs")
}
