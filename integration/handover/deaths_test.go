package handover

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// patientTTL is for deaths that cost no lock: on a busy machine the next worker can be late.
const patientTTL = "60s"

// Programs that write, wait, try, rotate and hold on two mounts notice no death of a daemon but a
// pause. (docs/SEMANTICS.md, rule 27.)
func TestDeathsUnderLoad(t *testing.T) {
	lab.InTurn(t, testDeathsUnderLoad, lab.Local, lab.InLeases.ForLong())
}

func testDeathsUnderLoad(t *testing.T, on lab.Setup) {
	tr := history.New(t, on.NewService(t), "--wait", "-1", "--suspend-wait", "10m", "--supervise", "--ttl", patientTTL)
	a, b := lab.Supervise(tr.Mount("a")), lab.Supervise(tr.Mount("b"))
	tr.Load(a.Mount)
	tr.Load(b.Mount)
	tr.WorkAlone(a.Mount, b.Mount)
	tr.WorkBelow(b.Mount, a.Mount)
	tr.GoesOn("before the deaths")
	began := history.Monotonic()
	for i := range longtest.Seeds(t, 2, 60) {
		if i%2 == 0 {
			a.KillWorker()
		} else {
			b.KillWorker()
		}
		tr.GoesOn("after a death")
	}
	tr.Finish()
	tr.Spared()
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			// Opens and renames of names that others use and replace are refused now and then, as ever.
			asEver := o.Kind != history.Wrote && o.Kind != history.Closed && slices.Contains([]syscall.Errno{unix.EAGAIN, unix.EBUSY, unix.ESTALE}, o.Errno)
			if o.Return >= began && o.Errno != 0 && !asEver && !tr.Unanswered(o) {
				t.Errorf("%s of %s: %v", o.Kind, o.Hold, o.Errno)
			}
		}
	}
}

// Programs on two mounts that lock ranges of one file, and count in them, notice no death of a daemon
// but a pause.
func TestRangesOutliveDeaths(t *testing.T) {
	lab.InTurn(t, testRangesOutliveDeaths, lab.Local, lab.InLeases)
}

func testRangesOutliveDeaths(t *testing.T, on lab.Setup) {
	tr := history.New(t, on.NewService(t), "--rule", history.RangesRule, "--supervise", "--ttl", patientTTL)
	a, b := lab.Supervise(tr.Mount("a")), lab.Supervise(tr.Mount("b"))
	tr.WorkOnRanges(a.Mount, 2)
	tr.GoesOn("on one mount")
	for i := range longtest.Seeds(t, 4, 60) {
		switch {
		case i == 1:
			tr.WorkOnRanges(b.Mount, 2)
			tr.GoesOn("on two mounts")
		case i%2 == 0:
			a.KillWorker()
		default:
			b.KillWorker()
		}
		tr.GoesOn("after a death")
	}
	tr.Finish()
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			if o.Errno != 0 && o.Errno != unix.EAGAIN && o.Errno != unix.EDEADLK && !tr.Unanswered(o) {
				t.Errorf("%s of %s: %v", o.Kind, o.Hold, o.Errno)
			}
		}
	}
}

// Open files, mappings, working directories, tokens and locks outlive daemons that die and daemons that
// are upgraded, in any order. (docs/SEMANTICS.md, rule 27.)
func TestDeathKeepsWhatIsOpen(t *testing.T) {
	lab.InTurn(t, testDeathKeepsWhatIsOpen, lab.Local, lab.InLeases.ForLong())
}

func testDeathKeepsWhatIsOpen(t *testing.T, on lab.Setup) {
	mounts := make(map[string]*lab.Supervised)
	n := 0
	keepsWhatIsOpen(t, on.NewVolume(t, "--supervise", "--ttl", patientTTL), func(m *lab.Mount) *lab.Mount {
		if mounts[m.Name] == nil {
			mounts[m.Name] = lab.Supervise(m)
		}
		s := mounts[m.Name]
		s.KillWorker()
		if n++; n == 2 {
			s = lab.Supervise(upgrade(t, m))
			mounts[m.Name] = s
			s.Takeovers = 1 // the upgrade is told so too
			s.KillWorker()
		}
		return s.Mount
	})
}

// A program that waits in line goes on waiting under the next daemon, and a signal ends it.
func TestWaiterIsInterruptedAfterADeath(t *testing.T) {
	waiterIsInterrupted(t, lab.NewVolume(t, "--wait", "-1", "--supervise", "--ttl", patientTTL), func(m *lab.Mount) { lab.Supervise(m).KillWorker() })
}

// A program that waits when its daemon dies gets the lock when it is free, and one that is killed
// leaves nothing.
func TestWaitersOutliveADeath(t *testing.T) {
	lab.InTurn(t, testWaitersOutliveADeath, lab.Local, lab.InLeases.ForLong())
}

func testWaitersOutliveADeath(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--supervise", "--ttl", patientTTL)
	v.Write("f", "")
	a, b := lab.Supervise(v.Mount("a")), v.Mount("b")
	holder, waiter, killed := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	waits := waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	killed.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "the second waits", func() bool { return killed.Within(unix.SYS_OPENAT) })
	a.KillWorker()
	killed.Kill()
	v.WaitFor("f")
	holder.Must(lab.Call{Op: "close", FD: held})
	r := lab.Await(t, "the waiter", waits)
	if r.Errno != 0 {
		t.Fatalf("the waiter: %v", r.Err())
	}
	waiter.Must(lab.Call{Op: "close", FD: r.N})
	free(t, a.Mount, v)
}

// After a death, an upgrade is given up in its pause: what waits and what is written is served once.
func TestUpgradeThatFailsAfterADeath(t *testing.T) {
	v := lab.NewVolume(t, "--wait", "-1", "--supervise", "--ttl", patientTTL)
	v.Write("f", "")
	v.Write("log", "")
	a, b := lab.Supervise(v.Mount("a")), v.Mount("b")
	holder, waiter, writer := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	held := holder.Open(b.Path("f"), unix.O_WRONLY)
	a.KillWorker()
	waits := waiter.Start(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	log := writer.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	const lines = 200
	writing := writer.Start(lab.Call{Op: "repeat", N: lines, Calls: []lab.Call{{Op: "write", FD: log, Data: "line\n"}}})
	for range 5 {
		asked(t, a.Mount).Close()
	}
	if r := lab.Await(t, "the writer", writing); r.Errno != 0 || len(r.Failed) > 0 {
		t.Errorf("the writer: %v, %v", r.Err(), r.Failed)
	}
	if got := v.Read("log"); got != strings.Repeat("line\n", lines) {
		t.Errorf("%d bytes were appended", len(got))
	}
	holder.Must(lab.Call{Op: "close", FD: held})
	r := lab.Await(t, "the waiter", waits)
	if r.Errno != 0 {
		t.Fatalf("the waiter: %v", r.Err())
	}
	waiter.Must(lab.Call{Op: "close", FD: r.N})
	writer.Must(lab.Call{Op: "close", FD: log})
	free(t, a.Mount, v)
}

// An upgrade that comes while a daemon dies, or right after, makes no call twice: the kernel may have
// some to send again still.
func TestUpgradeWhileADaemonDies(t *testing.T) {
	const files = 150
	v := lab.NewVolume(t, "--wait", "-1", "--supervise", "--ttl", patientTTL)
	a := lab.Supervise(v.Mount("a"))
	name := func(i int) string { return fmt.Sprint("log", i) }
	var ends atomic.Bool
	written := make(chan error, files)
	for i := range files {
		go func() {
			written <- func() error {
				f, err := lab.OpenFile(a.Path(name(i)), os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_DSYNC) // many are under way
				if err != nil {
					return err
				}
				defer f.Close()
				lines := 0
				for ; !ends.Load(); lines++ {
					if _, err := fmt.Fprintln(f, lines); err != nil {
						return err
					}
				}
				_, err = fmt.Fprintln(f, "end")
				return err
			}()
		}()
	}
	for range longtest.Seeds(t, 2, 30) {
		a.BecomesSteady()
		start := func() *lab.Mount { return v.Start("a", "--take-over") }
		next := start()
		time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond)
		if pid := a.Worker(); pid != 0 { // else the upgrade is over
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		lab.Eventually(t, "the new daemon serves", func() bool {
			if next.Ended() { // the one that died took too long, or was not there
				next = start()
			}
			return a.Ended() && next.Said("took the mount over")
		})
		a = lab.Supervise(next)
	}
	ends.Store(true)
	for range files {
		if err := lab.Await(t, "the end of a program", written); err != nil {
			t.Error(err)
		}
	}
	for i := range files {
		var want strings.Builder
		got := v.Read(name(i))
		for n := range strings.Count(got, "\n") - 1 {
			fmt.Fprintln(&want, n)
		}
		if want.WriteString("end\n"); got != want.String() {
			t.Errorf("%s: lines are doubled, lost or elsewhere", name(i))
		}
	}
}

// Locks that a dead daemon has kept while nobody used them are in nobody's way: not for calls of its
// view that cannot wait, nor for other mounts.
func TestDeathGivesKeptLocksBack(t *testing.T) {
	lab.InTurn(t, testDeathGivesKeptLocksBack, lab.Local, lab.InLeases.ForLong())
}

func testDeathGivesKeptLocksBack(t *testing.T, on lab.Setup) {
	const files = 100
	v := on.NewVolume(t, "--keep", "10m")
	if on.Leases {
		v.Env = append(v.Env, "LOCKFS_KUBE_QPS=50", "LOCKFS_KUBE_BURST=100") // the defaults
	}
	a, b := lab.Supervise(v.Mount("a", "--supervise")), v.Mount("b")
	name := func(i int) string { return fmt.Sprintf("d%d/f", i) } // a directory with much to do has one lock
	for i := range files {
		err := os.Mkdir(v.InSource(fmt.Sprint("d", i)), 0o755)
		for range 3 { // a lock is kept that was asked for again
			err = errors.Join(err, lab.InTime(func() error { return os.WriteFile(a.Path(name(i)), nil, 0o644) }))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(v.LS()); n < files*9/10 { // one may be on its way
		t.Fatalf("%d locks are kept, want some %d", n, files)
	}
	a.BecomesSteady()
	opened := make(chan error, files/2)
	died := time.Now()
	a.Dies(func() {
		if err := unix.Kill(a.Serving(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		for i := range files / 2 {
			go func() {
				opened <- lab.InTime(func() error { return os.WriteFile(b.Path(name(files/2+i)), []byte("x"), 0o644) })
			}()
		}
	})
	for i := range files / 2 {
		if err := lab.InTime(func() error { return os.Remove(a.Path(name(i))) }); err != nil {
			t.Error(err)
		}
	}
	for range files / 2 {
		if err := lab.Await(t, "the other mount's open", opened); err != nil {
			t.Error(err)
		}
	}
	t.Logf("all was opened elsewhere after %v", time.Since(died))
}

// A worker that dies while it takes over, at any instant of that, costs nothing either: what is appended,
// made and removed meanwhile is so once.
func TestDeathInATakeover(t *testing.T) {
	lab.InTurn(t, testDeathInATakeover, lab.Local, lab.InLeases.ForLong())
}

func testDeathInATakeover(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--ttl", patientTTL)
	s := lab.Supervise(v.Mount("a", "--supervise"))
	log, err := lab.OpenFile(s.Path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	var lines atomic.Int64
	stop, stopped := make(chan struct{}), make(chan error, 1)
	// If the second death comes right after the takeover, a request may be under way in both.
	refusals := 0
	refused := func(err error) bool {
		for i := 0; i < 200 && errors.Is(err, unix.EIO); i++ { // until the test has read the log
			if strings.Count(s.Log.String(), "daemons have died while they served it") > refusals {
				refusals++
				return true
			}
			time.Sleep(10 * time.Millisecond)
		}
		return false
	}
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			n := lines.Load()
			_, err := fmt.Fprintf(log, "%d\n", n)
			if refused(err) {
				if err = nil; !strings.HasSuffix("\n"+v.Read("log"), fmt.Sprintf("\n%d\n", n)) {
					_, err = fmt.Fprintf(log, "%d\n", n)
				}
			}
			name := s.Path(fmt.Sprint("name-", n))
			for _, call := range []func() error{
				func() error { return unix.Mkdir(name, 0o755) },
				func() error { return unix.Rename(name, name+"-renamed") },
				func() error { return unix.Rmdir(name + "-renamed") },
				func() error {
					return onFile(name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(int) error { return nil })
				},
				func() error { return unix.Unlink(name) },
			} {
				if err == nil {
					err = lab.InTime(call)
				}
				if refused(err) {
					err = errors.Join(os.RemoveAll(name), os.RemoveAll(name+"-renamed"))
					break
				}
			}
			if err != nil {
				stopped <- fmt.Errorf("round %d: %w", n, err)
				return
			}
			lines.Add(1)
		}
	}()
	goesOn := func() {
		t.Helper()
		n := lines.Load()
		lab.Eventually(t, "the program goes on", func() bool {
			if s.Ended() || len(stopped) > 0 {
				t.Fatalf("it has ended: %v\n%s", <-stopped, s.Log)
			}
			return lines.Load() > n+1
		})
	}
	for seed := range longtest.Seeds(t, 2, 40) {
		random := rand.New(rand.NewPCG(seed, 0))
		goesOn()
		s.BecomesSteady()
		was := s.Serving()
		_ = unix.Kill(was, unix.SIGKILL)
		next := 0
		lab.Eventually(t, "another worker begins", func() bool {
			next = s.Worker()
			return next != 0 && next != was
		})
		time.Sleep(time.Duration(random.IntN(150)) * time.Millisecond) // of some 50 that a takeover takes
		_ = unix.Kill(next, unix.SIGKILL)
		goesOn()
		s.Restarted()
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for n := range lines.Load() {
		fmt.Fprintln(&want, n)
	}
	if got := v.Read("log"); got != want.String() {
		t.Errorf("the log has %d bytes, want %d", len(got), want.Len())
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	free(t, s.Mount, v)
}

// A daemon that was frozen until its lease ended, and then dies, leaves a view that cannot write what
// it had: the file is another's by now. That goes for pages of a mapping too.
func TestFrozenDaemonThatDiesIsFenced(t *testing.T) {
	lab.InTurn(t, testFrozenDaemonThatDiesIsFenced, lab.Local, lab.InLeases.ForLong())
}

func testFrozenDaemonThatDiesIsFenced(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--ttl", lab.ShortTTL.String())
	v.Write("f", strings.Repeat("-", 8192))
	b := v.Mount("b", "--ttl", "5m") // which serves etcd, and loses nothing
	a := lab.Supervise(v.Mount("a", "--supervise"))
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_RDWR)
	p.Must(lab.Call{Op: "mmap", FD: fd, N: 8192})
	p.Must(lab.Call{Op: "store", FD: fd, Off: 4096, Data: "late"})
	a.BecomesSteady()
	worker := a.Serving()
	t.Cleanup(func() { _ = unix.Kill(worker, unix.SIGCONT) })
	if err := unix.Kill(worker, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	theirs := other.Open(b.Path("f"), unix.O_RDWR) // when the lease has ended
	other.Must(lab.Call{Op: "write", FD: theirs, Data: "next"})
	a.Dies(func() { _ = unix.Kill(worker, unix.SIGKILL) })
	p.Fails(lab.Call{Op: "write", FD: fd, Data: "late"}, unix.EIO)
	p.Fails(lab.Call{Op: "msync", FD: fd}, unix.EIO)
	other.Must(lab.Call{Op: "close", FD: theirs})
	if got, want := v.Read("f"), "next"+strings.Repeat("-", 8188); got != want {
		t.Errorf("the file is %q … %q", got[:4], got[4096:4100])
	}
}

// The next daemon goes by what the one that died went by, whatever has changed since that started.
func TestDeathAfterChanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("*.log nolock\n")
	v := lab.NewVolume(t, "--policy", file, "--ttl", patientTTL)
	v.Write("f", "")
	a := lab.Supervise(v.Mount("a", "--supervise"))
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_WRONLY)
	below := filepath.Join(v.Source, "below")
	for _, change := range []func() error{
		func() error { return os.WriteFile(file, []byte("no rule"), 0o644) },
		func() error { return os.Remove(file) },
		func() error {
			return errors.Join(os.Mkdir(below, 0o755), unix.Mount("tmpfs", below, "tmpfs", 0, "size=1m"))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		a.KillWorker()
		p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "xxx" {
		t.Errorf("the file is %q", got)
	}
	a.Stop()
	if err := unix.Unmount(below, unix.MNT_DETACH); err != nil {
		t.Error(err)
	}
}

// A daemon that is told to end while a worker takes over from a dead one ends as ever.
func TestEndsDuringATakeover(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := lab.Supervise(v.Mount("a", "--supervise"))
	a.BecomesSteady()
	if err := unix.Kill(a.Serving(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if status := a.Stop(); status != 0 {
		t.Errorf("exit status %d\n%s", status, a.Log)
	}
	if all, err := os.ReadFile("/proc/self/mounts"); err != nil || strings.Contains(string(all), " "+a.Dir+" ") {
		t.Errorf("the view is left: %v", err)
	}
}

// deadly kills who makes a symbolic link of that name.
type deadly struct{ lab.Below }

const deadlyName = "deadly"

func (d deadly) Symlink(ctx context.Context, target, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	if name != deadlyName {
		return d.LoopbackNode.Symlink(ctx, target, name, out)
	}
	if caller, ok := fuse.FromContext(ctx); ok {
		_ = unix.Kill(int(caller.Pid), unix.SIGKILL)
	}
	return nil, syscall.EINTR
}

// A request that kills each daemon that serves it is refused in time, and spares all others.
func TestDeadlyRequest(t *testing.T) {
	v := lab.NewVolume(t, "--ttl", patientTTL)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return deadly{b} })
	s := lab.Supervise(v.Mount("a", "--supervise", "--embedded"))
	file, err := lab.OpenFile(s.Path("f"), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s.BecomesSteady()
	if err := lab.InTime(func() error { return os.Symlink("x", s.Path(deadlyName)) }); !errors.Is(err, unix.EIO) {
		t.Errorf("the deadly call: %v, want EIO", err)
	}
	lab.Eventually(t, "the log says why", func() bool { return s.Said("a request is refused: daemons have died while they served it") })
	// Two deaths, the second soon after its start. A worker on a slow machine dies later, and the next as well.
	deaths := regexp.MustCompile(`msg="the worker has died; another one goes on.* after_seconds=(\S+)`).FindAllStringSubmatch(s.Log.String(), -1)
	for i, death := range deaths[min(1, len(deaths)):] {
		seconds, err := strconv.ParseFloat(death[1], 64)
		if soon, last := seconds < 2, i == len(deaths)-2; err != nil || soon != last {
			t.Errorf("worker %d of %d has lived for %v s (%v)", i+2, len(deaths), seconds, err)
		}
	}
	if len(deaths) < 2 {
		t.Errorf("%d workers have died, want 2", len(deaths))
	}
	if _, err := file.WriteString("x"); err != nil {
		t.Errorf("a file that was open: %v", err)
	}
	if err := file.Close(); err != nil || !is(v.Source+"/f", "x") {
		t.Errorf("it is closed (%v), and has lost what was written", err)
	}
}

// A daemon that dies at each start is given up: ENOTCONN, and not a view that hangs.
func TestDiesAtEachStart(t *testing.T) {
	v := lab.NewVolume(t)
	s := lab.Supervise(v.Mount("a", "--supervise"))
	file, err := lab.OpenFile(s.Path("f"), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	// A daemon under load lives for longer than it should before it dies here.
	lab.Eventually(t, "it is given up", func() bool {
		if !s.Ended() {
			if pid := s.Worker(); pid != 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		return s.Ended()
	})
	if _, err := file.WriteString("x"); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("a file that was open: %v, want ENOTCONN", err)
	}
	lab.Eventually(t, "the log says why", func() bool {
		return s.Said("the worker has died too often") || s.Said("the worker has died, and has left nothing")
	})
}

// The embedded etcd outlives the daemon that has started it, and ends with the last one.
func TestDeathSparesTheEmbeddedEtcd(t *testing.T) {
	v := lab.NewVolume(t)
	s := lab.Supervise(v.Mount("a", "--supervise"))
	etcd := func() (pid int) {
		for _, of := range []int{s.Cmd.Process.Pid, s.Serving()} {
			for child, name := range lab.Children(t, of) {
				if name == "lockfs-etcd" {
					pid = child
				}
			}
		}
		return pid
	}
	was := etcd()
	if was == 0 {
		t.Fatal("there is no etcd")
	}
	for range 2 {
		s.KillWorker()
		if err := lab.InTime(func() error { return os.WriteFile(s.Path("f"), []byte("x"), 0o644) }); err != nil {
			t.Error(err)
		}
	}
	if now := etcd(); now != was {
		t.Errorf("etcd is process %d, and was %d", now, was)
	}
	if status := s.Stop(); status != 0 {
		t.Errorf("exit status %d", status)
	}
	lab.Eventually(t, "etcd ends", func() bool { return unix.Kill(was, 0) == unix.ESRCH })
	if n := strings.Count(s.Log.String(), `msg="serving the embedded lock service" `); n != 1 {
		t.Errorf("etcd was started %d times, want 1:\n%s", n, s.Log)
	}
}
