package semantics

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Programs can read the fencing token of a file that is open for write, and by
// whom it is, on any mount; a later lock has a larger token. The attributes are
// not stored, not listed, and nobody sets them. (docs/SEMANTICS.md, rule 20.)
func TestLockAttributes(t *testing.T) {
	lab.Over(t, testLockAttributes, lab.Local, lab.InLeases.ForLong())
}

// The attributes are the file's, by whichever of its names it is open and was looked up last.
func TestLockAttributesOfLinks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	p := lab.NewAgent(t)
	token := func(path string) int64 {
		t.Helper()
		r := p.InTime(lab.Call{Op: "getxattr", Path: path, Path2: "user.lockfs.token"})
		value, _ := hex.DecodeString(r.Data)
		n, err := strconv.ParseInt(string(value), 10, 64)
		if r.Errno != 0 || err != nil {
			t.Errorf("token of %s: %v, %q", path, r.Err(), value)
		}
		return n
	}
	same := func(want int64, paths ...string) {
		t.Helper()
		for _, path := range paths {
			lab.Eventually(t, fmt.Sprintf("the token of %s is %d", path, want), func() bool {
				p.Do(lab.Call{Op: "mode", Path: path})
				return token(path) == want
			})
		}
	}
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		t.Fatal(err)
	}
	fd := p.Open(a.Path("f"), unix.O_WRONLY)
	first := token(lab.ProcFD(fd))
	same(first, a.Path("g"), lab.ProcFD(fd), b.Path("f"), b.Path("g"), a.Path("f"), lab.ProcFD(fd))
	p.Must(lab.Call{Op: "close", FD: fd})

	t.Log("the name that was looked up last is removed by another mount")
	lab.Eventually(t, "the lock is free", func() bool { return len(v.LS()) == 0 })
	p.Must(lab.Call{Op: "mode", Path: a.Path("f")})
	p.Must(lab.Call{Op: "mode", Path: a.Path("g")})
	fd = p.Open(a.Path("f"), unix.O_RDONLY)
	p.Must(lab.Call{Op: "mode", Path: a.Path("g")})
	p.Must(lab.Call{Op: "unlink", Path: b.Path("g")})
	writer := p.Open(b.Path("f"), unix.O_WRONLY)
	second := token(b.Path("f"))
	if second <= first {
		t.Errorf("the token of a later lock is %d, after %d", second, first)
	}
	same(second, lab.ProcFD(writer), lab.ProcFD(fd), a.Path("f"))
}

// An owner saves by rename, while another one waits for the file: it makes a new file with a later
// lock than that waiter's place in the line. The waiter gets the new file, and has a larger token.
func TestTokenOfAWaiterAfterASave(t *testing.T) {
	lab.Over(t, testTokenOfAWaiterAfterASave, lab.Local, lab.Releasing, lab.InLeases)
}

func testTokenOfAWaiterAfterASave(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	v.Write("f", "old")
	for range 3 {
		f := p.Open(a.Path("f"), unix.O_WRONLY)
		waits := q.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_RDWR})
		v.WaitFor("f")
		g := p.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)
		last := p.Token(g)
		p.Must(lab.Call{Op: "write", FD: g, Data: "new"})
		p.Must(lab.Call{Op: "rename", Path: a.Path("g"), Path2: a.Path("f")})
		if token := p.Token(g); token < last {
			t.Errorf("the file has token %d after the rename, %d before", token, last)
		} else {
			last = token
		}
		for _, fd := range []int{g, f} {
			p.Must(lab.Call{Op: "close", FD: fd})
		}
		got := lab.Await(t, "the open", waits)
		if got.Err() != nil {
			t.Fatal(got.Err())
		}
		if token := q.Token(got.N); token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		q.Must(lab.Call{Op: "close", FD: got.N})
	}
}

// A file that is open has lost its name to another file of the same owner, which is open too. It has no
// token: the name's is the other file's.
func TestTokenOfAReplacedFile(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--scope", "node")
	a := v.Mount("a")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	v.Write("f", "")
	v.Write("g", "")
	p.Open(a.Path("f"), unix.O_WRONLY)
	replaced := p.Open(a.Path("f"), unix.O_RDONLY)
	q.Must(lab.Call{Op: "rename", Path: a.Path("g"), Path2: a.Path("f")})
	if token := q.Token(q.Open(a.Path("f"), unix.O_WRONLY)); token == 0 {
		t.Error("the file of the name has no token")
	}
	p.Fails(lab.Call{Op: "getxattr", Path: lab.ProcFD(replaced), Path2: "user.lockfs.token"}, unix.ENODATA)
}

// Programs of one owner have a name open at all times. Another program of that owner gives the name
// to files that another mount has written to meanwhile. Whoever opens such a file has a larger token
// than that mount.
func TestTokenOfAFileRenamedOverAnOpenOne(t *testing.T) {
	lab.Over(t, testTokenOfAFileRenamedOverAnOpenOne, lab.Local, lab.InLeases.ForLong())
}

func testTokenOfAFileRenamedOverAnOpenOne(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--scope", "node", "--name-wait", "1m")
	a, b := v.Mount("a"), v.Mount("b")
	create := func(name string) (ino uint64) {
		t.Helper()
		v.Write(name, "")
		file, err := os.Open(v.InSource(name)) // else its number would be used again
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		var st unix.Stat_t
		if err := unix.Fstat(int(file.Fd()), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	create("f")
	type opened struct {
		ino   uint64
		token int64
	}
	stop := make(chan struct{})
	var opens [3][]opened
	var wg sync.WaitGroup
	for i := range opens {
		p := lab.NewAgent(t)
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
				if r.Errno == unix.ESTALE || r.Errno == unix.ENOLCK {
					continue
				}
				if r.Errno != 0 {
					t.Errorf("open: %v", r.Err())
					return
				}
				file := fmt.Sprintf("/proc/%d/fd/%d", p.PID(), r.N)
				value := make([]byte, 64)
				n, err := unix.Getxattr(file, "user.lockfs.token", value)
				var st unix.Stat_t
				if err == nil {
					err = unix.Stat(file, &st)
				}
				p.Must(lab.Call{Op: "close", FD: r.N})
				if err == unix.ENODATA || err == unix.ENOLCK {
					continue // another file has got the name, or the lock service is slow
				}
				token, _ := strconv.ParseInt(string(value[:max(n, 0)]), 10, 64)
				if err != nil || token == 0 {
					t.Errorf("token %q, %v", value, err)
					return
				}
				opens[i] = append(opens[i], opened{st.Ino, token})
			}
		})
	}
	q, r := lab.NewAgent(t), lab.NewAgent(t)
	theirs := make(map[uint64]int64)
	for i := range 60 {
		name := fmt.Sprint("g", i)
		ino := create(name)
		fd := r.Open(b.Path(name), unix.O_WRONLY)
		theirs[ino] = r.Token(fd)
		r.Must(lab.Call{Op: "close", FD: fd})
		q.Must(lab.Call{Op: "rename", Path: a.Path(name), Path2: a.Path("f")})
	}
	close(stop)
	wg.Wait()
	seen, smaller := 0, 0
	for _, some := range opens {
		for _, o := range some {
			if had := theirs[o.ino]; had != 0 {
				seen++
				if o.token <= had {
					smaller++
				}
			}
		}
	}
	if smaller > 0 || seen == 0 {
		t.Errorf("%d of %d opens had a smaller token than the mount that wrote to the file before", smaller, seen)
	}
}

func testLockAttributes(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	p := lab.NewAgent(t)
	get := func(path, attr string) string {
		t.Helper()
		r := p.InTime(lab.Call{Op: "getxattr", Path: path, Path2: attr})
		if r.Errno != 0 {
			t.Fatalf("%s of %s: %v", attr, path, r.Err())
		}
		value, err := hex.DecodeString(r.Data)
		if err != nil {
			t.Fatal(err)
		}
		return string(value)
	}
	const token, owner = "user.lockfs.token", "user.lockfs.owner"
	last := int64(0)
	for range 2 {
		fd := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
		held := v.LS()
		if len(held) != 1 {
			t.Fatalf("locked: %v", held)
		}
		own := get(lab.ProcFD(fd), token)
		if got, err := strconv.ParseInt(own, 10, 64); err != nil || got <= last {
			t.Errorf("token %q, want more than %d", own, last)
		} else {
			last = got
		}
		for _, path := range []string{a.Path("f"), b.Path("f"), lab.ProcFD(fd)} {
			lab.Eventually(t, "all see the token that was told", func() bool { return get(path, token) == own })
			var holder struct {
				Node string
				PID  int
			}
			if err := json.Unmarshal([]byte(get(path, owner)), &holder); err != nil || holder.Node != "a" || holder.PID != p.PID() {
				t.Errorf("owner of %s: %+v, %v", path, holder, err)
			}
		}
		if es := v.LS(); len(es) != 1 || strconv.FormatInt(es[0].Token, 10) != own {
			t.Errorf("token %s, listed: %+v", own, es)
		}
		if err := unix.Setxattr(a.Path("f"), "user.mine", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		names := make([]byte, 4096)
		n, err := unix.Listxattr(a.Path("f"), names)
		if err != nil || string(names[:n]) != "user.mine\x00" {
			t.Errorf("attributes: %q, %v", names[:max(n, 0)], err)
		}
		p.Fails(lab.Call{Op: "setxattr", Path: a.Path("f"), Path2: token, Data: "31"}, unix.EPERM)
		p.Must(lab.Call{Op: "close", FD: fd})
		lab.Eventually(t, "the lock is free", func() bool { return len(v.LS()) == 0 })
		for _, m := range []*lab.Mount{a, b} {
			p.Fails(lab.Call{Op: "getxattr", Path: m.Path("f"), Path2: token}, unix.ENODATA)
		}
	}
}
