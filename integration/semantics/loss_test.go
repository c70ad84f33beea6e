package semantics

import (
	"strings"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Pages of a mapping whose lock was lost stay out of the file. The kernel sends
// them through any handle of the same node that can write: a new open on the
// same mount once was one, whether it found the node in the kernel's cache or by
// /proc/self/fd. Now it is of another node, or refused.
func TestLostMappingsPages(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	for _, how := range []string{"name", "descriptor"} {
		t.Run("opened by "+how, func(t *testing.T) {
			lab.Eventually(t, "nothing is locked", func() bool { return len(v.LS()) == 0 })
			v.Write(how, strings.Repeat("-", 4096))
			path := a.Path(how)
			writer, other := lab.NewAgent(t), lab.NewAgent(t)
			fd := writer.Open(path, unix.O_RDWR)
			writer.Must(lab.Call{Op: "mmap", FD: fd, N: 4096})
			rd := other.Open(path, unix.O_RDONLY)
			if how == "descriptor" {
				path = lab.ProcFD(rd)
			}
			losses := strings.Count(a.Log.String(), "lock session lost")
			v.Revoke()
			lab.Eventually(t, "the mount knows", func() bool { return strings.Count(a.Log.String(), "lock session lost") > losses })
			writer.Must(lab.Call{Op: "store", FD: fd, Data: "fenced"})
			next := other.Do(lab.Call{Op: "open", Path: path, Flags: unix.O_RDWR})
			switch {
			case next.Errno == unix.ESTALE && how == "descriptor": // no lookup can find another node
				next = other.Do(lab.Call{Op: "open", Path: a.Path(how), Flags: unix.O_RDWR})
			case next.Errno != 0:
				t.Errorf("open after the loss: %v", next.Err())
			}
			writer.Must(lab.Call{Op: "store", FD: fd, Data: "fenced"})
			other.Must(lab.Call{Op: "mmap", FD: next.N, N: 4096})
			if r := writer.Do(lab.Call{Op: "msync", FD: fd}); r.Errno != unix.EIO {
				t.Errorf("msync of the lost mapping: %v, want EIO", r.Err())
			}
			other.Must(lab.Call{Op: "store", FD: next.N, Off: 6, Data: "theirs"})
			other.Must(lab.Call{Op: "msync", FD: next.N})
			if got := v.Read(how); got[:13] != "------theirs-" {
				t.Errorf("the file holds %q…", got[:13])
			}
			writer.Kill()
			other.Kill()
		})
	}
}

// An open that waits in line when the mount gets SIGTERM fails, and leaves its
// file as it is. While the mount let a write finish it once granted the waiter
// the lock of a file that it had closed already, and truncated that.
func TestShutdownDoesNotTruncate(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded", "--wait", "-1")
	writes := lab.NewTurnstile(t)
	v.Under(func(n lab.Below) gofs.InodeEmbedder { return &heldWrites{n, writes} })
	a := v.Mount("a")
	t.Cleanup(writes.End)
	writer := lab.NewAgent(t)
	v.Write("slow", "")
	fd := writer.Open(a.Path("slow"), unix.O_WRONLY)
	var waiters []*lab.Agent
	var pending []<-chan lab.Result
	files := []string{"f0", "f1", "f2", "f3"}
	for _, name := range files {
		v.Write(name, "precious")
		holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
		holder.Open(a.Path(name), unix.O_WRONLY)
		waiter.Must(lab.Call{Op: "mode", Path: a.Path(name)}) // to look nothing up later
		waiters = append(waiters, waiter)
		pending = append(pending, waiter.Start(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_TRUNC}))
	}
	for _, w := range waiters {
		lab.Eventually(t, "it waits", func() bool { return w.Within(unix.SYS_OPENAT) })
	}
	writes.Shut.Store(true)
	write := writer.Start(lab.Call{Op: "write", FD: fd, Data: "x"})
	let := writes.Next()
	if err := a.Cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for i, name := range files {
		if r := lab.Await(t, "open", pending[i]); r.Errno == 0 {
			t.Errorf("%s was opened by a mount that ends", name)
		}
	}
	let()
	if r := lab.Await(t, "write", write); r.Errno != 0 {
		t.Errorf("the write that was under way: %v", r.Err())
	}
	select {
	case <-a.Done:
	case <-time.After(lab.CallTimeout):
		t.Fatal("the mount does not end")
	}
	if a.Err != nil {
		t.Errorf("the mount ends with %v", a.Err)
	}
	for _, name := range files {
		if got := v.Read(name); got != "precious" {
			t.Errorf("%s holds %q", name, got)
		}
	}
}

// A program whose mount has lost its session gets EIO of every call that is to
// write, also when the mount gave up by itself: because its connections are
// refused, or because etcd is silent. The errno once was ENOLCK, of a service
// that does not answer.
func TestErrnoAfterPartition(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--suspend-wait", "10ms", "--ttl", "30s")
	silent := v.Mount("silent")
	p := lab.NewPartition(t, v.StateFile("client.sock"))
	refused := v.Mount("refused", "--endpoints", p.Endpoint())
	writers := make(map[*lab.Mount]*lab.Agent)
	fds := make(map[*lab.Mount]int)
	for _, m := range []*lab.Mount{silent, refused} {
		writers[m] = lab.NewAgent(t)
		fds[m] = writers[m].Open(m.Path("of-"+m.Name), unix.O_WRONLY|unix.O_CREAT)
		writers[m].Must(lab.Call{Op: "write", FD: fds[m], Data: "x"})
	}
	etcd := v.EtcdPID()
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	p.Part()
	lab.Freeze(t, etcd)
	for m, w := range writers {
		lab.Eventually(t, m.Name+" has given up", m.LostItsSession)
		for _, c := range []lab.Call{{Op: "write", Data: "y"}, {Op: "ftruncate"}, {Op: "fallocate", N: 10}, {Op: "fsync"}, {Op: "close"}} {
			c.FD = fds[m]
			if r := w.Do(c); r.Errno != unix.EIO {
				t.Errorf("%s on %s: %v, want EIO", c.Op, m.Name, r.Err())
			}
		}
		if got := v.Read("of-" + m.Name); got != "x" {
			t.Errorf("the file of %s holds %q", m.Name, got)
		}
	}
	refused.Kill() // in peace it would try for long to end its session
}

// A copy is made in pieces, with a look at the lock before each: one of a
// gigabyte, issued under the lock, once landed seconds after another owner's
// grant and write. Programs ask again for the rest.
func TestCopyInPieces(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const piece, size = 4 << 20, 10 << 20
	data := strings.Repeat("0123456789abcdef", size/16)
	v.Write("f", data)
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_RDWR)
	n := p.Must(lab.Call{Op: "copy", FD: fd, N: size, Off: size})
	if n < 1 || n > piece {
		t.Errorf("of %d bytes %d were copied at once, want at most %d", size, n, piece)
	}
	if got := v.Read("f"); got != data+data[:n] {
		t.Errorf("%d bytes were copied, the file has %d", n, len(got))
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	v.Write("f", data)
	lab.Run(t, "cp", "--sparse=never", a.Path("f"), a.Path("g"))
	if got := v.Read("g"); got != data {
		t.Errorf("of %d bytes cp has copied %d", len(data), len(got))
	}
}

// A program that saves a file by rename under its lock does not replace what the next owner has
// written, when its mount has lost that lock.
func TestRenameAfterALoss(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--name-wait", "1m") // the other mount's lock may be given back late
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "first")
	writer, another, other := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := writer.Open(a.Path("f"), unix.O_RDWR)
	v.Revoke()
	lab.Eventually(t, "the mount knows", func() bool { return strings.Contains(a.Log.String(), "lock session lost") })
	write := func() {
		next := other.Open(b.Path("f"), unix.O_WRONLY)
		other.Must(lab.Call{Op: "pwrite", FD: next, Data: "other"})
		other.Must(lab.Call{Op: "close", FD: next})
	}
	write()
	v.Write("new", "saved")
	v.Write("old", "moved")
	save := lab.Call{Op: "rename", Path: a.Path("new"), Path2: a.Path("f")}
	lab.Eventually(t, "the mount has another session", func() bool {
		return writer.Do(lab.Call{Op: "rename", Path: a.Path("old"), Path2: a.Path("older")}).Errno == 0
	})
	writer.Fails(save, unix.EIO)
	writer.Fails(lab.Call{Op: "exchange", Path: a.Path("new"), Path2: a.Path("f")}, unix.EIO)
	writer.Fails(lab.Call{Op: "exchange", Path: a.Path("f"), Path2: a.Path("new")}, unix.EIO)
	if got := v.Read("f"); got != "other" {
		t.Errorf("the file holds %q", got)
	}
	another.Must(save) // it has lost nothing
	write()
	v.Write("new", "saved again")
	writer.Fails(lab.Call{Op: "fsync", FD: fd}, unix.EIO)
	writer.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
	writer.Must(save)
	if got := v.Read("f"); got != "saved again" {
		t.Errorf("the file holds %q", got)
	}
}
