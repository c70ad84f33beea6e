package semantics

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Whom a lock is shared with does not depend on whether it is kept, or a directory above is
// delegated. Another mount is excluded until the last owner has closed the file.
// (docs/SEMANTICS.md, rules 4, 31 and 33.)
func TestScopesInADelegatedDirectory(t *testing.T) {
	lab.Over(t, testScopesInADelegatedDirectory, lab.Local, lab.InLeases.ForLong())
}

func testScopesInADelegatedDirectory(t *testing.T, on lab.Setup) {
	testScopes(t, on, "t/f0", func(v *lab.Volume, p *lab.Agent, m *lab.Mount) int64 { return delegate(v, p, m, "t") })
}

func TestScopesOfAKeptLock(t *testing.T) {
	lab.Over(t, testScopesOfAKeptLock, lab.Local, lab.InLeases.ForLong())
}

func testScopesOfAKeptLock(t *testing.T, on lab.Setup) {
	testScopes(t, on, "f", func(v *lab.Volume, p *lab.Agent, m *lab.Mount) int64 {
		keepLock(v, p, m, "f")
		es := v.LS()
		return es[slices.IndexFunc(es, func(e lab.Entry) bool { return e.Path == "f" })].Token
	})
}

// testScopes has a mount that could lock name by itself, whose token keep returns.
func testScopes(t *testing.T, on lab.Setup, name string, keep func(*lab.Volume, *lab.Agent, *lab.Mount) int64) {
	for scope, shares := range map[string]struct{ pod, node bool }{
		"node": {true, true}, "pod": {true, false}, "auto": {true, false}, "process": {}, "handle": {},
	} {
		for _, how := range []string{"--scope", "--rule"} {
			t.Run(scope+how, func(t *testing.T) {
				if how == "--rule" && scope != "pod" {
					longtest.Only(t)
				}
				start := func(string) *lab.Agent { return lab.NewAgent(t) }
				var pods [2]string
				if shares.pod && !shares.node {
					pods[0], pods[1] = lab.NewPod(t), lab.NewPod(t)
					start = func(pod string) *lab.Agent { return lab.NewAgentIn(t, pod) }
				}
				flags := []string{"--keep", "1m", "--scope", scope}
				if how == "--rule" {
					flags = []string{"--keep", "1m", "--scope", "handle", "--rule", "/" + name + " lock scope=" + scope}
				}
				v := on.NewVolume(t, flags...)
				a, b := v.Mount("a"), v.Mount("b")
				p, r, s, q := start(pods[0]), start(pods[0]), start(pods[1]), lab.NewAgent(t)
				last := keep(v, p, a)
				fd := p.Open(a.Path(name), unix.O_WRONLY|unix.O_APPEND)
				token := p.Token(fd)
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				also := make(map[*lab.Agent]int)
				for who, shares := range map[*lab.Agent]bool{r: shares.pod, s: shares.node} {
					got := who.InTime(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
					switch {
					case shares && got.Errno == 0:
						if other := who.Token(got.N); other != token {
							t.Errorf("tokens %d and %d of one owner", token, other)
						}
						also[who] = got.N
					case shares || got.Errno != unix.EAGAIN:
						t.Fatalf("another program: %v", got.Err())
					}
				}
				waits := q.Start(lab.Call{Op: "open", Path: b.Path(name), Flags: unix.O_WRONLY | unix.O_APPEND})
				v.WaitFor(name)
				p.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
				p.Must(lab.Call{Op: "close", FD: fd})
				for who, fd := range also {
					if n := v.Waiting(name); n != 1 {
						t.Errorf("%d wait while not all have closed it", n)
					}
					who.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
					who.Must(lab.Call{Op: "close", FD: fd})
				}
				theirs := lab.Await(t, "the open on b", waits)
				if now := q.Token(theirs.N); now <= token {
					t.Errorf("token %d after %d", now, token)
				}
				for _, who := range []*lab.Agent{p, r, s} {
					who.Fails(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
				}
				q.Must(lab.Call{Op: "write", FD: theirs.N, Data: "b"})
				q.Must(lab.Call{Op: "close", FD: theirs.N})
				if got := v.Read(name); got != "ab" { // those that share wrote to the first byte
					t.Errorf("the file holds %q", got)
				}
			})
		}
	}
}

// With --read-locks readers in a delegated directory exclude writers, also on the mount
// that it is delegated to. Readers of another mount share with them.
func TestReadersInADelegatedDirectory(t *testing.T) {
	lab.Over(t, testReadersInADelegatedDirectory, lab.Local, lab.InLeases)
}

func testReadersInADelegatedDirectory(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--keep", "1m", "--read-locks", "--ttl", "1m") // an open that tries waits for an eighth of that
	a, b := v.Mount("a"), v.Mount("b")
	p, r, q := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	delegate(v, p, a, "t")
	open := func(who *lab.Agent, m *lab.Mount, name string, flags int, want unix.Errno) int {
		t.Helper()
		got := who.InTime(lab.Call{Op: "open", Path: m.Path(name), Flags: flags | unix.O_NONBLOCK})
		if got.Errno != want {
			t.Fatalf("open of %s on %s: %v, want %v", name, m.Name, got.Err(), want)
		}
		return got.N
	}
	mine := open(r, a, "t/f0", unix.O_RDONLY, 0)
	open(p, a, "t/f0", unix.O_WRONLY, unix.EAGAIN)
	writes := open(p, a, "t/f1", unix.O_WRONLY, 0)
	open(r, a, "t/f1", unix.O_RDONLY, unix.EAGAIN)
	theirs := open(q, b, "t/f0", unix.O_RDONLY, 0) // and recalls the directory
	open(q, b, "t/f1", unix.O_RDONLY, unix.EAGAIN)
	open(q, b, "t/f1", unix.O_WRONLY, unix.EAGAIN)
	for _, m := range []*lab.Mount{a, b} {
		open(p, m, "t/f0", unix.O_WRONLY, unix.EAGAIN)
	}
	r.Must(lab.Call{Op: "close", FD: mine})
	q.Must(lab.Call{Op: "close", FD: theirs})
	p.Must(lab.Call{Op: "close", FD: writes})
	lab.Eventually(t, "all is released", func() bool {
		got := q.Do(lab.Call{Op: "open", Path: b.Path("t/f0"), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
		return got.Errno == 0
	})
}

// A file with names in two directories, which are delegated to two mounts, has one owner by
// whatever name; also one that was made without a name. What is open by one name when the other's
// directory is recalled stays locked.
func TestLinksAcrossDelegatedDirectories(t *testing.T) {
	lab.Over(t, testLinksAcrossDelegatedDirectories, lab.Local, lab.InLeases.ForLong())
}

func testLinksAcrossDelegatedDirectories(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--keep", "1m", "--name-wait", lab.CallTimeout.String()) // link waits for a recall
	a, b := v.Mount("a"), v.Mount("b")
	p, r, q := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	for i, how := range []string{"link", "tmpfile"} {
		ta, tb := fmt.Sprint("ta", i), fmt.Sprint("tb", i)
		delegate(v, p, a, ta)
		delegate(v, q, b, tb)
		names := []string{ta + "/f0", tb + "/link"}
		if how == "tmpfile" {
			names[0] = ta + "/tmp"
			fd := r.Open(a.Path(ta), unix.O_TMPFILE|unix.O_WRONLY)
			r.Must(lab.Call{Op: "name", FD: fd, Path: a.Path(names[0])})
			r.Must(lab.Call{Op: "close", FD: fd})
		}
		r.Must(lab.Call{Op: "link", Path: a.Path(names[0]), Path2: a.Path(names[1])}) // as the owner: the close may not be through
		var last int64
		for n := range 12 {
			m, other := a, b
			if n%2 == 1 {
				m, other = b, a
			}
			fd := r.Open(m.Path(names[n/2%2]), unix.O_WRONLY|unix.O_APPEND)
			for _, name := range names {
				for _, by := range []*lab.Mount{a, b} {
					if got := q.InTime(lab.Call{Op: "open", Path: by.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); got.Errno != unix.EAGAIN {
						t.Fatalf("%s, open of %s on %s beside %s on %s: %v", how, name, by.Name, names[n/2%2], m.Name, got.Err())
					}
				}
			}
			waits := q.Start(lab.Call{Op: "open", Path: other.Path(names[1-n/2%2]), Flags: unix.O_WRONLY | unix.O_APPEND})
			lab.Eventually(t, "it waits", func() bool {
				return slices.ContainsFunc(v.LS(), func(e lab.Entry) bool { return e.State == "waiting" })
			})
			token := r.Token(fd)
			r.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
			r.Must(lab.Call{Op: "close", FD: fd})
			got := lab.Await(t, "the open by the other name", waits)
			if now := q.Token(got.N); now <= token || token <= last {
				t.Errorf("tokens %d, %d, %d", last, token, now)
			} else {
				last = now
			}
			q.Must(lab.Call{Op: "write", FD: got.N, Data: "y"})
			q.Must(lab.Call{Op: "close", FD: got.N})
		}
	}
}

// A file has a name in a directory that is delegated to one mount, and another elsewhere. Another
// mount writes to it by that name, and removes the name. The next owner, whom the delegate lets in
// by itself, has a larger token.
func TestOtherNameOfAFileIsRemoved(t *testing.T) {
	lab.Over(t, testOtherNameOfAFileIsRemoved, lab.Local, lab.InLeases)
}

func testOtherNameOfAFileIsRemoved(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--keep", "1m")
	const files = 6
	for _, dir := range []string{"t", "o"} {
		if err := os.Mkdir(v.InSource(dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	one, other := func(i int) string { return fmt.Sprint("t/linked", i) }, func(i int) string { return fmt.Sprint("o/other", i) }
	for i := range files {
		v.Write(one(i), "")
		if err := os.Link(v.InSource(one(i)), v.InSource(other(i))); err != nil {
			t.Fatal(err)
		}
	}
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	delegate(v, p, a, "t")
	for i := range files {
		before := []string{"unknown to the delegate", "looked up, with two names", "opened by both names"}[i%3]
		switch i % 3 {
		case 1:
			p.Must(lab.Call{Op: "ask", Path: a.Path(one(i))})
		case 2:
			first := p.Open(a.Path(other(i)), unix.O_WRONLY)
			p.Must(lab.Call{Op: "close", FD: p.Open(a.Path(one(i)), unix.O_WRONLY)})
			p.Must(lab.Call{Op: "close", FD: first})
		}
		fd := q.Open(b.Path(other(i)), unix.O_WRONLY)
		theirs := q.Token(fd)
		q.Must(lab.Call{Op: "close", FD: fd})
		q.Must(lab.Call{Op: "unlink", Path: b.Path(other(i))})
		p.Must(lab.Call{Op: "ask", Path: a.Path(one(i))})
		fd = p.Open(a.Path(one(i)), unix.O_WRONLY)
		if token := p.Token(fd); token <= theirs {
			t.Errorf("%s: token %d after %d", before, token, theirs)
		}
		p.Must(lab.Call{Op: "close", FD: fd})
	}
	if !delegated(v, "t") {
		t.Error("it is not delegated any more")
	}
}
