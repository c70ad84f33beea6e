package integration

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

func (m *mount) lostItsSession() bool { return strings.Contains(m.log.String(), "lock session lost") }

// Pages of a mapping whose lock was lost stay out of the file. The kernel sends
// them through any handle of the same node that can write: a new open on the
// same mount once was one, whether it found the node in the kernel's cache or by
// /proc/self/fd. Now it is of another node, or refused.
func TestLostMappingsPages(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	for _, how := range []string{"name", "descriptor"} {
		t.Run("opened by "+how, func(t *testing.T) {
			eventually(t, "nothing is locked", func() bool { return len(v.ls()) == 0 })
			v.write(how, strings.Repeat("-", 4096))
			path := a.path(how)
			writer, other := newAgent(t), newAgent(t)
			fd := writer.open(path, rdwr)
			writer.must(call{Op: "mmap", FD: fd, N: 4096})
			rd := other.open(path, rdonly)
			if how == "descriptor" {
				path = procFD(rd)
			}
			losses := strings.Count(a.log.String(), "lock session lost")
			v.revoke()
			eventually(t, "the mount knows", func() bool { return strings.Count(a.log.String(), "lock session lost") > losses })
			writer.must(call{Op: "store", FD: fd, Data: "fenced"})
			next := other.do(call{Op: "open", Path: path, Flags: rdwr})
			switch {
			case next.Errno == unix.ESTALE && how == "descriptor": // no lookup can find another node
				next = other.do(call{Op: "open", Path: a.path(how), Flags: rdwr})
			case next.Errno != 0:
				t.Errorf("open after the loss: %v", next.Err())
			}
			writer.must(call{Op: "store", FD: fd, Data: "fenced"})
			other.must(call{Op: "mmap", FD: next.N, N: 4096})
			if r := writer.do(call{Op: "msync", FD: fd}); r.Errno != unix.EIO {
				t.Errorf("msync of the lost mapping: %v, want EIO", r.Err())
			}
			other.must(call{Op: "store", FD: next.N, Off: 6, Data: "theirs"})
			other.must(call{Op: "msync", FD: next.N})
			if got := v.read(how); got[:13] != "------theirs-" {
				t.Errorf("the file holds %q…", got[:13])
			}
			writer.kill()
			other.kill()
		})
	}
}

// An open that waits in line when the mount gets SIGTERM fails, and leaves its
// file as it is. While the mount let a write finish it once granted the waiter
// the lock of a file that it had closed already, and truncated that.
func TestShutdownDoesNotTruncate(t *testing.T) {
	v := newVolume(t, "--embedded", "--wait", "-1")
	v.inMemory()
	writes := newTurnstile(t)
	v.under(func(n below) gofs.InodeEmbedder { return &heldWrites{n, writes} })
	a := v.mount("a")
	t.Cleanup(writes.end)
	writer := newAgent(t)
	v.write("slow", "")
	fd := writer.open(a.path("slow"), wronly)
	var waiters []*agent
	var pending []<-chan result
	files := []string{"f0", "f1", "f2", "f3"}
	for _, name := range files {
		v.write(name, "precious")
		holder, waiter := newAgent(t), newAgent(t)
		holder.open(a.path(name), wronly)
		waiter.must(call{Op: "mode", Path: a.path(name)}) // to look nothing up later
		waiters = append(waiters, waiter)
		pending = append(pending, waiter.start(call{Op: "open", Path: a.path(name), Flags: wronly | trunc}))
	}
	for _, w := range waiters {
		eventually(t, "it waits", func() bool { return w.within(unix.SYS_OPENAT) })
	}
	writes.shut.Store(true)
	write := writer.start(call{Op: "write", FD: fd, Data: "x"})
	let := writes.next()
	if err := a.cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i, name := range files {
		if r := await(t, "open", pending[i]); r.Errno == 0 {
			t.Errorf("%s was opened by a mount that ends", name)
		}
	}
	let()
	if r := await(t, "write", write); r.Errno != 0 {
		t.Errorf("the write that was under way: %v", r.Err())
	}
	select {
	case <-a.done:
	case <-time.After(callTimeout):
		t.Fatal("the mount does not end")
	}
	if a.err != nil {
		t.Errorf("the mount ends with %v", a.err)
	}
	for _, name := range files {
		if got := v.read(name); got != "precious" {
			t.Errorf("%s holds %q", name, got)
		}
	}
}

// partition stands between a mount and etcd until it is cut.
type partition struct {
	mu    sync.Mutex
	cut   bool
	conns []net.Conn
	l     net.Listener
	to    string
}

func newPartition(t *testing.T, to string) *partition {
	t.Helper()
	l, err := net.Listen("unix", to+".partition")
	if err != nil {
		t.Fatal(err)
	}
	p := &partition{l: l, to: to}
	t.Cleanup(p.part)
	go p.serve()
	return p
}

func (p *partition) endpoint() string { return "unix://" + p.l.Addr().String() }

func (p *partition) serve() {
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		d, err := net.Dial("unix", p.to)
		if err != nil {
			c.Close()
			continue
		}
		p.mu.Lock()
		if p.cut {
			c.Close()
			d.Close()
		}
		p.conns = append(p.conns, c, d)
		p.mu.Unlock()
		go io.Copy(c, d)
		go io.Copy(d, c)
	}
}

// part cuts the connections, and refuses new ones.
func (p *partition) part() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = true
	p.l.Close()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

// A program whose mount has lost its session gets EIO of every call that is to
// write, also when the mount gave up by itself: because its connections are
// refused, or because etcd is silent. The errno once was ENOLCK, of a service
// that does not answer.
func TestErrnoAfterPartition(t *testing.T) {
	v := newVolume(t, "--suspend-wait", "10ms", "--ttl", shortTTL.String())
	silent := v.mount("silent")
	p := newPartition(t, v.stateFile("client.sock"))
	refused := v.mount("refused", "--endpoints", p.endpoint())
	writers := make(map[*mount]*agent)
	fds := make(map[*mount]int)
	for _, m := range []*mount{silent, refused} {
		writers[m] = newAgent(t)
		fds[m] = writers[m].open(m.path("of-"+m.name), wronly|create)
		writers[m].must(call{Op: "write", FD: fds[m], Data: "x"})
	}
	etcd := v.etcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	p.part()
	freeze(t, etcd)
	for m, w := range writers {
		eventually(t, m.name+" has given up", m.lostItsSession)
		for _, c := range []call{{Op: "write", Data: "y"}, {Op: "ftruncate"}, {Op: "fallocate", N: 10}, {Op: "fsync"}, {Op: "close"}} {
			c.FD = fds[m]
			if r := w.do(c); r.Errno != unix.EIO {
				t.Errorf("%s on %s: %v, want EIO", c.Op, m.name, r.Err())
			}
		}
		if got := v.read("of-" + m.name); got != "x" {
			t.Errorf("the file of %s holds %q", m.name, got)
		}
	}
	refused.kill() // in peace it would try for long to end its session
}

// A copy is made in pieces, with a look at the lock before each: one of a
// gigabyte, issued under the lock, once landed seconds after another owner's
// grant and write. Programs ask again for the rest.
func TestCopyInPieces(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	const piece, size = 4 << 20, 10 << 20
	data := strings.Repeat("0123456789abcdef", size/16)
	v.write("f", data)
	p := newAgent(t)
	fd := p.open(a.path("f"), rdwr)
	n := p.must(call{Op: "copy", FD: fd, N: size, Off: size})
	if n < 1 || n > piece {
		t.Errorf("of %d bytes %d were copied at once, want at most %d", size, n, piece)
	}
	if got := v.read("f"); got != data+data[:n] {
		t.Errorf("%d bytes were copied, the file has %d", n, len(got))
	}
	p.must(call{Op: "close", FD: fd})
	v.write("f", data)
	run(t, "cp", "--sparse=never", a.path("f"), a.path("g"))
	if got := v.read("g"); got != data {
		t.Errorf("of %d bytes cp has copied %d", len(data), len(got))
	}
}
