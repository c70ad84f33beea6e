package semantics

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

const (
	lockEx  = unix.LOCK_EX
	lockSh  = unix.LOCK_SH
	atOnce  = unix.LOCK_NB
	unlock  = unix.LOCK_UN
	forRead = unix.F_RDLCK
	toWrite = unix.F_WRLCK
)

// newFlocks returns a volume whose mounts share flock and fcntl locks, and whose files take no
// lock when they are opened.
func newFlocks(t *testing.T, on lab.Setup, args ...string) *lab.Volume {
	v := on.NewVolume(t, append([]string{"--flock", "cluster", "--rule", "** nolock"}, args...)...)
	return v
}

// flock and fcntl locks of all kinds exclude programs on other mounts as they do on one, and end
// with the descriptor or the process. (docs/SEMANTICS.md, rule 32.)
func TestFlockOfTwoMounts(t *testing.T) {
	lab.Over(t, testFlockOfTwoMounts, lab.Local, lab.InLeases, lab.OnNetworkVolume)
}

func testFlockOfTwoMounts(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on, "--ttl", "1m") // of which a mount has an eighth to publish what it has
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "0123456789")
	if err := os.Link(filepath.Join(v.Source, "f"), filepath.Join(v.Source, "g")); err != nil {
		t.Fatal(err)
	}
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	fd := one.Open(a.Path("f"), unix.O_RDONLY)
	other := two.Open(b.Path("g"), unix.O_RDONLY) // the same file
	rw, otherRW := one.Open(a.Path("f"), unix.O_RDWR), two.Open(b.Path("g"), unix.O_RDWR)

	t.Log("flock, exclusive by a descriptor that is open for read")
	one.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx | atOnce})
	two.Fails(lab.Call{Op: "flock", FD: other, Flags: lockEx | atOnce}, unix.EWOULDBLOCK)
	two.Fails(lab.Call{Op: "flock", FD: other, Flags: lockSh | atOnce}, unix.EWOULDBLOCK)
	one.Fails(lab.Call{Op: "flock", FD: rw, Flags: lockSh | atOnce}, unix.EWOULDBLOCK)
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: toWrite}) // ranges do not see it
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: unix.F_UNLCK})
	one.Must(lab.Call{Op: "flock", FD: fd, Flags: lockSh | atOnce}) // downgraded
	two.Must(lab.Call{Op: "flock", FD: other, Flags: lockSh | atOnce})
	one.Fails(lab.Call{Op: "flock", FD: fd, Flags: lockEx | atOnce}, unix.EWOULDBLOCK)
	two.Must(lab.Call{Op: "flock", FD: other, Flags: lockEx | atOnce}) // the refused owner has none left
	two.Must(lab.Call{Op: "flock", FD: other, Flags: unlock})

	t.Log("fcntl, by ranges")
	one.Must(lab.Call{Op: "setlk", FD: rw, Flags: toWrite, Off: 0, N: 10})
	one.Must(lab.Call{Op: "setlk", FD: rw, Flags: forRead, Off: 3, N: 2})
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: forRead, Off: 3, N: 2})
	two.Fails(lab.Call{Op: "setlk", FD: otherRW, Flags: forRead, Off: 2, N: 2}, unix.EAGAIN)
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: toWrite, Off: 10})
	if r := two.Do(lab.Call{Op: "getlk", FD: otherRW, Flags: toWrite, Off: 0, N: 1}); r.Data != "w 0 3" || r.N != 0 {
		t.Errorf("the lock in the way is %q of %d, want that of another node from 0 to 3", r.Data, r.N)
	}
	local := lab.NewAgent(t)
	localRW := local.Open(a.Path("f"), unix.O_RDWR)
	if r := local.Do(lab.Call{Op: "getlk", FD: localRW, Flags: toWrite, Off: 5, N: 1}); r.Data != "w 5 5" || r.N != one.PID() {
		t.Errorf("the lock in the way is %q of %d, want that of %d from 5 on", r.Data, r.N, one.PID())
	}
	if r := local.Do(lab.Call{Op: "getlk", FD: localRW, Flags: toWrite, Off: 3, N: 2}); r.Data[0] != 'r' {
		t.Errorf("the lock in the way is %q, want one to read", r.Data)
	}
	t.Log("a process loses its ranges when it closes any descriptor of the file")
	one.Must(lab.Call{Op: "close", FD: fd})
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: toWrite})
	one.Fails(lab.Call{Op: "setlk", FD: rw, Flags: forRead, Off: 99, N: 1}, unix.EAGAIN)
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: unix.F_UNLCK})

	t.Log("ranges of an open file stay until its last descriptor is closed")
	fd = one.Open(a.Path("f"), unix.O_RDWR)
	one.Must(lab.Call{Op: "ofd setlk", FD: fd, Flags: toWrite, Off: 1, N: 1})
	one.Fails(lab.Call{Op: "ofd setlk", FD: rw, Flags: toWrite}, unix.EAGAIN)
	dup := one.Must(lab.Call{Op: "dup", FD: fd})
	one.Must(lab.Call{Op: "close", FD: fd})
	two.Fails(lab.Call{Op: "ofd setlk", FD: otherRW, Flags: toWrite}, unix.EAGAIN)
	one.Must(lab.Call{Op: "close", FD: dup})
	lab.Eventually(t, "the range of the closed file is free", func() bool {
		return two.Do(lab.Call{Op: "ofd setlk", FD: otherRW, Flags: toWrite}).Errno == 0
	})
	two.Must(lab.Call{Op: "ofd setlk", FD: otherRW, Flags: unix.F_UNLCK})

	t.Log("a child that ends does not end what its parent has locked anew, by another descriptor")
	fd = one.Open(a.Path("f"), unix.O_RDWR)
	one.Must(lab.Call{Op: "setlk", FD: fd, Flags: toWrite, N: 1})
	one.Must(lab.Call{Op: "ofd setlk", FD: fd, Flags: toWrite, Off: 9, N: 1}) // tells when the file is closed
	child := one.Must(lab.Call{Op: "spawn", FD: fd})
	one.Must(lab.Call{Op: "close", FD: fd})
	one.Must(lab.Call{Op: "setlk", FD: rw, Flags: toWrite, N: 1})
	if err := unix.Kill(child, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the range of the child's file is free", func() bool {
		return two.Do(lab.Call{Op: "setlk", FD: otherRW, Flags: toWrite, Off: 9, N: 1}).Errno == 0
	})
	two.Fails(lab.Call{Op: "setlk", FD: otherRW, Flags: forRead, N: 1}, unix.EAGAIN)
	two.Must(lab.Call{Op: "setlk", FD: otherRW, Flags: unix.F_UNLCK})
	one.Must(lab.Call{Op: "setlk", FD: rw, Flags: unix.F_UNLCK})

	t.Log("SIGKILL ends all of them")
	one.Must(lab.Call{Op: "flock", FD: rw, Flags: lockEx})
	one.Must(lab.Call{Op: "setlk", FD: rw, Flags: toWrite})
	flocked := two.Start(lab.Call{Op: "flock", FD: other, Flags: lockEx})
	ranged := local.Start(lab.Call{Op: "setlkw", FD: localRW, Flags: toWrite})
	one.Kill()
	if r := lab.Await(t, "flock after SIGKILL", flocked); r.Errno != 0 {
		t.Errorf("flock after SIGKILL: %v", r.Err())
	}
	if r := lab.Await(t, "fcntl after SIGKILL", ranged); r.Errno != 0 {
		t.Errorf("fcntl after SIGKILL: %v", r.Err())
	}
	two.Kill()
	local.Kill()
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// What waits for a flock or a range is listed, ends at once with a signal, and leaves nothing.
func TestFlockEndsWithASignal(t *testing.T) {
	lab.Over(t, testFlockEndsWithASignal, lab.Local, lab.InLeases.ForLong())
}

func testFlockEndsWithASignal(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	holder := lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
	for name, m := range map[string]*lab.Mount{"on the holder's mount": a, "on another": b} {
		// Its timer sends a signal that is caught. It hangs if it was too slow to be in the call by then.
		ctx, cancel := context.WithTimeout(t.Context(), lab.CallTimeout)
		out, err := exec.CommandContext(ctx, "flock", "-w", "3", m.Path("f"), "true").CombinedOutput()
		cancel()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 1 {
			t.Errorf("%s: flock -w 3: %v: %s; want exit status 1", name, err, out)
		}
		cmd := exec.Command("flock", m.Path("f"), "true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "flock waits "+name, func() bool { return lab.IsWithin(t, cmd.Process.Pid, unix.SYS_FLOCK) })
		if m == b {
			lab.Eventually(t, "it is listed", func() bool {
				es := v.LS()
				return len(es) == 2 && es[1].State == "waiting" && es[1].Command == "flock" && es[1].Node == "b" && es[0].State == "held"
			})
		}
		_ = cmd.Process.Signal(unix.SIGTERM)
		if err := cmd.Wait(); err == nil {
			t.Errorf("%s: flock got the lock", name)
		}
	}
	lab.Eventually(t, "nobody is in line", func() bool { return len(v.LS()) == 1 })
	holder.Must(lab.Call{Op: "close", FD: fd})
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// Two programs on two mounts each have what the other waits for: the last one gets EDEADLK.
func TestFlockDeadlock(t *testing.T) { lab.Over(t, testFlockDeadlock, lab.Local, lab.InLeases) }

func testFlockDeadlock(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on, "--ttl", "1m") // an unlock waits for an eighth of it until the service has it
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	v.Write("g", "")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	f1, g1 := one.Open(a.Path("f"), unix.O_RDWR), one.Open(a.Path("g"), unix.O_RDWR)
	f2, g2 := two.Open(b.Path("f"), unix.O_RDWR), two.Open(b.Path("g"), unix.O_RDWR)
	for range 5 {
		one.Must(lab.Call{Op: "setlk", FD: f1, Flags: toWrite, N: 1})
		two.Must(lab.Call{Op: "setlk", FD: g2, Flags: toWrite, N: 1})
		pending := one.Start(lab.Call{Op: "setlkw", FD: g1, Flags: toWrite, N: 1})
		lab.Eventually(t, "the first waits", func() bool { return waitsFor(v) == 1 })
		two.Fails(lab.Call{Op: "setlkw", FD: f2, Flags: toWrite, N: 1}, unix.EDEADLK)
		two.Must(lab.Call{Op: "setlk", FD: g2, Flags: unix.F_UNLCK})
		if r := lab.Await(t, "the first", pending); r.Errno != 0 {
			t.Fatalf("the first: %v", r.Err())
		}
		one.Must(lab.Call{Op: "setlk", FD: f1, Flags: unix.F_UNLCK})
		one.Must(lab.Call{Op: "setlk", FD: g1, Flags: unix.F_UNLCK})
	}
}

// waitsFor counts the requests that stand in line.
func waitsFor(v *lab.Volume) (n int) {
	for _, e := range v.LS() {
		if e.State == "waiting" {
			n++
		}
	}
	return n
}

// A counter in a file that two nodes keep open loses nothing, whichever lock they count under.
func TestFlockCounter(t *testing.T) {
	lab.Over(t, testFlockCounter, lab.Local, lab.InLeases.ForLong(), lab.OverClients, lab.OverClientsThatKeep.ForLong(), lab.OnNetworkVolume)
}

func testFlockCounter(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	const rounds, programs = 15, 2
	for _, kind := range []string{"flock", "setlkw", "ofd setlkw", "mapped"} {
		v.Write(kind, strings.Repeat("0", 10))
		done := make(chan error)
		for i := range 2 * programs {
			p, m := lab.NewAgent(t), a
			if i%2 == 1 {
				m = b
			}
			fd := p.Open(m.Path(kind), unix.O_RDWR)
			if kind == "mapped" {
				p.Must(lab.Call{Op: "mmap", FD: fd, N: 10})
			}
			go func() { done <- count(p, fd, kind, rounds) }()
		}
		for range 2 * programs {
			if err := <-done; err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		}
		lab.NewAgent(t).Sees(a.Path(kind), fmt.Sprintf("%010d", 2*programs*rounds))
	}
}

func count(p *lab.Agent, fd int, kind string, rounds int) error {
	take, give := lab.Call{Op: kind, FD: fd, Flags: toWrite}, lab.Call{Op: kind, FD: fd, Flags: unix.F_UNLCK}
	write := lab.Call{Op: "pwrite", FD: fd}
	if kind == "mapped" { // and no msync
		kind, write.Op = "flock", "store"
	}
	if kind == "flock" {
		take.Op, give.Op = kind, kind
		take.Flags, give.Flags = lockEx, unlock
	}
	for range rounds {
		if r := p.Do(take); r.Errno != 0 {
			return fmt.Errorf("lock: %w", r.Errno)
		}
		r := p.Do(lab.Call{Op: "pread", FD: fd, N: 10})
		n, err := strconv.Atoi(r.Data)
		if err != nil {
			return err
		}
		write.Data = fmt.Sprintf("%010d", n+1)
		if r := p.Do(write); r.Errno != 0 {
			return fmt.Errorf("write: %w", r.Errno)
		}
		if r := p.Do(give); r.Errno != 0 {
			return fmt.Errorf("unlock: %w", r.Errno)
		}
	}
	return nil
}

// A program that keeps a file open reads under its lock what another node has written, by whichever
// descriptor it reads, however often it has read the file before.
func TestReadUnderAFlock(t *testing.T) {
	lab.Over(t, testReadUnderAFlock, lab.Local, lab.InLeases.ForLong(), lab.OverClients,
		lab.OverClients.That(lab.ClientConfig{Ahead: true, Doubts: true, PastCache: true}), lab.OnNetworkVolume)
}

func testReadUnderAFlock(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	reader, writer := lab.NewAgent(t), lab.NewAgent(t)
	for _, flags := range []int{unix.O_RDONLY, unix.O_RDWR, unix.O_RDWR | unix.O_APPEND} {
		name := fmt.Sprint("f", flags)
		v.Write(name, strings.Repeat("-", 100))
		other := writer.Open(b.Path(name), unix.O_RDWR)
		fds := []int{reader.Open(a.Path(name), flags), reader.Open(a.Path(name), flags)}
		for i := range 10 {
			writer.Must(lab.Call{Op: "flock", FD: other, Flags: lockEx})
			want := fmt.Sprintf("%0100d", i)
			writer.Must(lab.Call{Op: "pwrite", FD: other, Data: want})
			writer.Must(lab.Call{Op: "flock", FD: other, Flags: unlock})
			reader.Must(lab.Call{Op: "flock", FD: fds[0], Flags: lockSh})
			for _, fd := range fds {
				for range 3 {
					if got := reader.Do(lab.Call{Op: "pread", FD: fd, N: 100}); got.Data != want {
						t.Fatalf("flags %#x, round %d: read %q, %v, want %q", flags, i, got.Data, got.Err(), want)
					}
				}
			}
			reader.Must(lab.Call{Op: "flock", FD: fds[0], Flags: unlock})
		}
	}
}

// Programs of two nodes change bytes of one page, each under a lock of its own range, while both
// know the page: neither writes what the other has written back to what it was.
func TestRangesOfOnePage(t *testing.T) {
	lab.Over(t, testRangesOfOnePage, lab.Local, lab.InLeases.ForLong(), lab.OverClients, lab.OnNetworkVolume)
}

func testRangesOfOnePage(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	one, two := lab.NewAgent(t), lab.NewAgent(t)
	for _, kind := range []string{"setlkw", "ofd setlkw"} {
		v.Write(kind, strings.Repeat("-", 20))
		ranges := []struct {
			p   *lab.Agent
			fd  int
			off int64
		}{{one, one.Open(a.Path(kind), unix.O_RDWR), 0}, {two, two.Open(b.Path(kind), unix.O_RDWR), 10}}
		for i := range 10 {
			for _, r := range ranges {
				r.p.Must(lab.Call{Op: kind, FD: r.fd, Flags: toWrite, Off: r.off, N: 10})
			}
			for _, r := range ranges {
				r.p.Must(lab.Call{Op: "pread", FD: r.fd, N: 20})
			}
			for _, r := range ranges {
				r.p.Must(lab.Call{Op: "pwrite", FD: r.fd, Off: r.off, Data: fmt.Sprintf("%010d", i)})
			}
			for _, r := range ranges {
				r.p.Must(lab.Call{Op: kind, FD: r.fd, Flags: unix.F_UNLCK})
			}
			want := fmt.Sprintf("%010d%010d", i, i)
			for _, r := range ranges {
				r.p.Must(lab.Call{Op: kind, FD: r.fd, Flags: forRead, N: 20})
				if got := r.p.Do(lab.Call{Op: "pread", FD: r.fd, N: 20}); got.Data != want {
					t.Errorf("%s, round %d: read %q, want %q", kind, i, got.Data, want)
				}
				r.p.Must(lab.Call{Op: kind, FD: r.fd, Flags: unix.F_UNLCK})
			}
		}
	}
}

// A rule of the policy says whom the flocks of its files exclude, whatever --flock says of the others.
func TestFlockOfRules(t *testing.T) { lab.Over(t, testFlockOfRules, lab.Local, lab.InLeases.ForLong()) }

func testFlockOfRules(t *testing.T, on lab.Setup) {
	for _, c := range []struct {
		flock, rule   string
		apart, shared string // files whose flocks are each mount's, and all mounts'
		name          string // as that of shared
	}{
		{"local", "*.lock nolock flock=cluster", "f", "f.lock", "g.lock"},
		{"cluster", "*.tmp nolock flock=local", "f.tmp", "f", "g"},
	} {
		v := on.NewVolume(t, "--flock", c.flock, "--rule", c.rule, "--rule", "** nolock", "--ttl", "1m")
		a, b := v.Mount("a-"+c.flock), v.Mount("b-"+c.flock)
		one, two := lab.NewAgent(t), lab.NewAgent(t)
		for _, name := range []string{c.apart, c.shared} {
			v.Write(name, "0123456789")
			fd, other := one.Open(a.Path(name), unix.O_RDWR), two.Open(b.Path(name), unix.O_RDWR)
			beside := two.Open(a.Path(name), unix.O_RDWR)
			var want unix.Errno
			if name == c.shared {
				want = unix.EAGAIN
			}
			fails := func(p *lab.Agent, call lab.Call, want unix.Errno) {
				t.Helper()
				if r := p.InTime(call); r.Errno != want {
					t.Errorf("--flock %s, %s: %s: %v, want %v", c.flock, name, call.Op, r.Err(), want)
				}
			}
			one.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
			fails(two, lab.Call{Op: "flock", FD: other, Flags: lockSh | atOnce}, want)
			fails(two, lab.Call{Op: "flock", FD: beside, Flags: lockSh | atOnce}, unix.EAGAIN)
			one.Must(lab.Call{Op: "setlk", FD: fd, Flags: toWrite, Off: 3, N: 2})
			fails(two, lab.Call{Op: "setlk", FD: other, Flags: toWrite, Off: 4, N: 9}, want)
			fails(two, lab.Call{Op: "setlk", FD: beside, Flags: toWrite, Off: 4, N: 9}, unix.EAGAIN)
			if r := two.Do(lab.Call{Op: "getlk", FD: beside, Flags: toWrite, Off: 4, N: 1}); r.Data != "w 3 2" || r.N != one.PID() {
				t.Errorf("the lock in the way is %q of %d, want that of %d from 3 to 4", r.Data, r.N, one.PID())
			}
			one.Must(lab.Call{Op: "close", FD: fd})
			lab.Eventually(t, "the flock ends with the descriptor", func() bool {
				return two.Do(lab.Call{Op: "flock", FD: beside, Flags: lockSh | atOnce}).Errno == 0
			})
			two.Must(lab.Call{Op: "setlk", FD: beside, Flags: toWrite, Off: 4, N: 9})
			if listed := len(v.LS()) > 0; listed != (name == c.shared) {
				t.Errorf("--flock %s, %s: listed: %v", c.flock, name, v.LS())
			}
			two.Must(lab.Call{Op: "close", FD: beside})
		}
		for _, op := range []string{"rename", "link"} {
			one.Fails(lab.Call{Op: op, Path: a.Path(c.apart), Path2: a.Path(c.name)}, unix.EXDEV)
		}
	}
}

// A mount that is frozen, or whose session was ended, loses its locks: another gets them, and
// what has the file open on the first writes no more, not even by the pages of a mapping.
func TestFlockIsFenced(t *testing.T) {
	lab.Over(t, testFlockIsFenced, lab.Local, lab.InLeases, lab.OnNetworkVolume)
}

func testFlockIsFenced(t *testing.T, on lab.Setup) {
	const patient = "5m" // what is not to be lost is no question of time
	for name, c := range map[string]struct {
		ttl  string
		lose func(v *lab.Volume, a *lab.Mount)
	}{
		"revoked": {patient, func(v *lab.Volume, a *lab.Mount) { v.RevokeSession(v.LS()[0].Session) }},
		"frozen":  {mortalTTL, func(v *lab.Volume, a *lab.Mount) { lab.Freeze(t, a.Cmd.Process.Pid) }},
	} {
		if on.Leases && name == "revoked" {
			continue // it is the lease of an etcd
		}
		lab.InTries(t, func() bool {
			v := newFlocks(t, on)
			a, b := v.Mount("a-"+name, "--ttl", c.ttl), v.Mount("b-"+name, "--ttl", patient)
			v.Write("f", strings.Repeat("-", 4096))
			holder, next := lab.NewAgent(t), lab.NewAgent(t)
			fd := holder.Open(a.Path("f"), unix.O_RDWR)
			mapped := holder.Open(a.Path("f"), unix.O_RDWR)
			holder.Must(lab.Call{Op: "mmap", FD: mapped, N: 4096})
			holder.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
			holder.Must(lab.Call{Op: "pwrite", FD: fd, Data: "mine"})
			waiter := lab.NewAgent(t)
			beside := waiter.Open(a.Path("f"), unix.O_RDWR)
			other := next.Open(b.Path("f"), unix.O_RDWR)
			pending := next.Start(lab.Call{Op: "flock", FD: other, Flags: lockEx})
			if !a.Keeps(pending, func() bool { return waitsFor(v) == 1 }) {
				return false
			}
			useless := waiter.Start(lab.Call{Op: "flock", FD: beside, Flags: lockEx})
			if !a.Keeps(useless, func() bool { return lab.IsWithin(t, waiter.PID(), unix.SYS_FLOCK) }) {
				return false
			}
			c.lose(v, a)
			if r := lab.Await(t, "the next", pending); r.Errno != 0 {
				t.Fatalf("%s: the next: %v", name, r.Err())
			}
			if r := next.Do(lab.Call{Op: "pread", FD: other, N: 5}); r.Data != "mine-" {
				t.Errorf("%s: the next reads %q, want what the holder wrote", name, r.Data)
			}
			next.Must(lab.Call{Op: "pwrite", FD: other, Data: "theirs"})
			_ = a.Cmd.Process.Signal(unix.SIGCONT)

			if r := lab.Await(t, "the wait for what it could not use", useless); r.Errno != unix.EIO {
				t.Errorf("%s: who waited beside the holder: %v, want EIO", name, r.Err())
			}
			holder.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "late"}, unix.EIO)
			holder.Fails(lab.Call{Op: "pread", FD: fd, N: 1}, unix.EIO)
			holder.Fails(lab.Call{Op: "fsync", FD: fd}, unix.EIO)
			lab.Eventually(t, "a try is refused", func() bool { // by the service, once that has answered in time
				r := holder.Do(lab.Call{Op: "flock", FD: fd, Flags: lockEx | atOnce})
				if r.Errno != unix.EAGAIN && r.Errno != unix.ENOLCK {
					t.Fatalf("%s: a try: %v", name, r.Err())
				}
				return r.Errno == unix.EAGAIN
			})
			holder.Must(lab.Call{Op: "store", FD: mapped, Off: 0, Data: "latest"})
			again := 0
			lab.Eventually(t, "the file can be opened again", func() bool {
				r := holder.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDWR})
				again = r.N
				return r.Errno == 0 && holder.Do(lab.Call{Op: "pwrite", FD: again, Off: 10, Data: "new"}).Errno == 0
			})
			next.Must(lab.Call{Op: "flock", FD: other, Flags: unlock})
			holder.Fails(lab.Call{Op: "flock", FD: fd, Flags: lockEx}, unix.EIO)
			holder.Must(lab.Call{Op: "flock", FD: again, Flags: lockEx})
			holder.Must(lab.Call{Op: "fsync", FD: again})
			if r := holder.Do(lab.Call{Op: "msync", FD: mapped}); r.Errno != unix.EIO {
				t.Errorf("%s: msync of a lost mapping: %v, want EIO", name, r.Err())
			}
			holder.Kill()
			if got := v.Read("f"); got[:14] != "theirs----new-" {
				t.Errorf("%s: the file holds %q…", name, got[:14])
			}
			return true
		})
	}
}

// A mount that is killed keeps its locks until its TTL is over, or its successor has come.
func TestFlockOfAKilledMount(t *testing.T) {
	lab.Over(t, testFlockOfAKilledMount, lab.Local, lab.InLeases, lab.OnNetworkVolume)
}

func testFlockOfAKilledMount(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on, "--ttl", mortalTTL)
	a, b := v.Mount("a"), v.Mount("b", "--ttl", "5m") // b loses nothing
	v.Write("f", "")
	holder, next := lab.NewAgent(t), lab.NewAgent(t)
	holder.Must(lab.Call{Op: "flock", FD: holder.Open(a.Path("f"), unix.O_RDWR), Flags: lockEx})
	fd := next.Open(b.Path("f"), unix.O_RDWR)
	killed := time.Now()
	a.Kill()
	if r := next.Do(lab.Call{Op: "flock", FD: fd, Flags: lockEx | atOnce}); r.Errno == 0 && time.Since(killed) < time.Second {
		t.Error("granted before the TTL was over")
	}
	if r := next.Do(lab.Call{Op: "flock", FD: fd, Flags: lockEx}); r.Errno != 0 {
		t.Errorf("after the TTL: %v", r.Err())
	}
}

// Many waiters hold no thread of the daemon, and a few places in the lock service.
func TestFlockCrowd(t *testing.T) { lab.Over(t, testFlockCrowd, lab.Local, lab.InLeases.ForLong()) }

func testFlockCrowd(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	v.Write("other", "text")
	holder, crowd := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
	const n = 1000
	// One open file is one owner, and has the lock as soon as one of its calls does.
	mine := crowd.Open(b.Path("f"), unix.O_RDWR)
	crowd.Must(lab.Call{Op: "flood", N: n, Calls: []lab.Call{{Op: "flock", FD: mine, Flags: lockEx}}})
	lab.Eventually(t, "the crowd waits", func() bool { return waiting(t, crowd.PID()) == n })
	if found := threads(t, b.Cmd.Process.Pid); found > n/4 {
		t.Errorf("the daemon has %d threads while %d calls wait", found, n)
	}
	if lines := len(v.LS()); lines > 20 {
		t.Errorf("%d lines for the holder and one owner", lines)
	}
	p := lab.NewAgent(t)
	if r := p.Do(lab.Call{Op: "pread", FD: p.Open(b.Path("other"), unix.O_RDONLY), N: 9}); r.Data != "text" {
		t.Errorf("beside the crowd: %q, %v", r.Data, r.Err())
	}
	holder.Must(lab.Call{Op: "close", FD: fd})
	r := crowd.Do(lab.Call{Op: "flooded"})
	if r.N != n || len(r.Failed) > 0 {
		t.Errorf("%d calls, of which failed: %v", r.N, r.Failed)
	}
}

// waiting counts a process's threads that are in flock.
func waiting(t *testing.T, pid int) (n int) {
	t.Helper()
	found, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range found {
		if b, _ := os.ReadFile(name); strings.HasPrefix(string(b), strconv.Itoa(unix.SYS_FLOCK)+" ") {
			n++
		}
	}
	return n
}

func threads(t *testing.T, pid int) int {
	t.Helper()
	found, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(found)
}

// What a mount has written under a table that it had to itself, and unlocked, is read under the next
// lock of another mount. The other way round as well, once the table is private again.
func TestFlockOfAPrivateTable(t *testing.T) {
	lab.Over(t, testFlockOfAPrivateTable, lab.Local, lab.InLeases.ForLong(), lab.OverClients, lab.OverClientsThatKeep.ForLong())
}

func testFlockOfAPrivateTable(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	for _, kind := range []string{"flock", "setlkw"} {
		for i := range 4 {
			name := fmt.Sprintf("%s-%d", kind, i)
			v.Write(name, strings.Repeat("0", 10))
			one, other := lab.NewAgent(t), lab.NewAgent(t)
			mine, its := one.Open(a.Path(name), unix.O_RDWR), other.Open(b.Path(name), unix.O_RDWR)
			for _, turn := range []struct {
				of     *lab.Agent
				fd     int
				rounds int
			}{{one, mine, 20}, {other, its, 1 + i}, {one, mine, 3}, {other, its, 20}} {
				if err := count(turn.of, turn.fd, kind, turn.rounds); err != nil {
					t.Fatal(err)
				}
			}
			if n, err := strconv.Atoi(v.Read(name)); n != 44+i {
				t.Errorf("%s: counted to %d, %v; want %d", name, n, err, 44+i)
			}
		}
	}
}

// Locking a file that nobody else locks costs the lock service two commits, however often it is done.
func TestFlockCostsNoCommit(t *testing.T) { lab.Over(t, testFlockCostsNoCommit, lab.Local) }

func testFlockCostsNoCommit(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on)
	a := v.Mount("a")
	v.Write("f", "0123456789")
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_RDWR)
	rows := v.Etcd().Watch(t.Context(), "/lockfs", clientv3.WithPrefix())
	slow := 0
	for range 300 {
		began := time.Now()
		if err := count(p, fd, "setlkw", 1); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) >= time.Second {
			slow++
		}
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	changes := 0
	for gone := false; !gone; {
		for _, ev := range (<-rows).Events {
			if strings.Contains(string(ev.Kv.Key), "advisory/") {
				changes++
				gone = gone || ev.Type == clientv3.EventTypeDelete
			}
		}
	}
	// A slow machine may tell, for people, what has been locked for a second.
	if changes > 30+2*slow {
		t.Errorf("%d changes of the table for 300 times locked, want 2", changes)
	}
}
