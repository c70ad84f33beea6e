package procid

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// onThread runs f on a thread that is not the process's main thread.
func onThread(f func(tid int)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Not unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		if unix.Gettid() != os.Getpid() {
			f(unix.Gettid())
			return
		}
		onThread(f) // the main thread is held here, so it is another one's turn
	}()
	<-done
}

func TestLookupOfAThreadIsItsProcess(t *testing.T) {
	want, err := Proc{}.Lookup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if want.Process.PID != os.Getpid() || want.Process.Start == 0 {
		t.Errorf("Lookup of the main thread = %+v", want)
	}
	onThread(func(tid int) {
		got, err := Proc{}.Lookup(tid)
		if err != nil || got != want {
			t.Errorf("Lookup(%d) = %+v, %v, want %+v", tid, got, err, want)
		}
	})
}

func TestLookupOfAnyName(t *testing.T) {
	for _, name := range []string{"a) (b", ") S 1 1 1", "(((", "two\nlines"} {
		cmd := startChild(t, name)
		got, err := Proc{}.Lookup(cmd.Process.Pid)
		if err != nil || got.Comm != name || got.Process.PID != cmd.Process.Pid {
			t.Errorf("Lookup of a process named %q = %+v, %v", name, got, err)
		}
	}
}

func TestLookupOfAProcessOfOneThread(t *testing.T) {
	before, err := Proc{}.Lookup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pid := startSleep(t).Process.Pid
	got, err := Proc{}.Lookup(pid)
	if err != nil || got.Process.PID != pid || got.Process.Start < before.Process.Start {
		t.Errorf("Lookup(%d) = %+v, %v; it was started by %+v", pid, got, err, before)
	}
}

func startSleep(tb testing.TB) *exec.Cmd {
	tb.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd
}

func TestGoneProcess(t *testing.T) {
	cmd := startSleep(t)
	pid := cmd.Process.Pid
	if (Proc{}).KillPending(pid) {
		t.Error("KillPending of a live process")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// Dead, and not yet waited for.
	for deadline := time.Now().Add(time.Minute); !(Proc{}).KillPending(pid); {
		if time.Now().After(deadline) {
			t.Fatal("no KillPending of a killed process")
		}
		runtime.Gosched()
	}
	cmd.Wait()
	for _, tid := range []int{pid, 0, -1} {
		if !(Proc{}).KillPending(tid) {
			t.Errorf("KillPending(%d) = false, want true", tid)
		}
		if got, err := (Proc{}).Lookup(tid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(%d) = %+v, %v, want fs.ErrNotExist", tid, got, err)
		}
		if got := (Proc{}).Ancestors(tid); len(got) != 0 {
			t.Errorf("Ancestors(%d) = %v", tid, got)
		}
	}
}

// A process that dies between open and read is gone, as one is before open.
func TestReadOfADyingProcess(t *testing.T) {
	cmd := startSleep(t)
	f, err := os.Open(Proc{}.path(cmd.Process.Pid, "stat"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd.Process.Kill()
	cmd.Wait()
	if _, err := readAll(int(f.Fd()), make([]byte, bufSize)); !errors.Is(err, fs.ErrNotExist) || !errors.Is(err, unix.ESRCH) {
		t.Errorf("readAll = %v, want fs.ErrNotExist and ESRCH", err)
	}
}

func TestAncestorsOfAChild(t *testing.T) {
	cmd := startSleep(t)
	self, err := Proc{}.Lookup(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	got := Proc{}.Ancestors(cmd.Process.Pid)
	if len(got) < 2 || got[0] != self.Process || got[1].PID != os.Getppid() {
		t.Errorf("Ancestors = %v, want first %v and its parent %d", got, self.Process, os.Getppid())
	}
	if last := got[len(got)-1]; (Proc{}).InHostPIDNamespace() && last.PID != 1 {
		t.Errorf("the last ancestor is %v, want process 1", last)
	}
}

func BenchmarkLookup(b *testing.B) {
	bench := func(b *testing.B, tid int) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := (Proc{}).Lookup(tid); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("one thread", func(b *testing.B) { bench(b, startSleep(b).Process.Pid) })
	b.Run("many threads", func(b *testing.B) { onThread(func(tid int) { bench(b, tid) }) })
}

func BenchmarkKillPending(b *testing.B) {
	pid := startSleep(b).Process.Pid
	b.ReportAllocs()
	for b.Loop() {
		if (Proc{}).KillPending(pid) {
			b.Fatal("killed")
		}
	}
}

func BenchmarkAncestors(b *testing.B) {
	var found []Process
	for b.Loop() {
		found = Proc{}.Ancestors(os.Getpid())
	}
	b.ReportMetric(float64(len(found)), "ancestors")
}
