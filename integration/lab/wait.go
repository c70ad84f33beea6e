package lab

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Freeze stops a process, and returns when none of its threads runs any more.
func Freeze(t *testing.T, pid int) {
	t.Helper()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the process is frozen", func() bool {
		stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, stat := range stats {
			b, _ := os.ReadFile(stat)
			if i := bytes.LastIndexByte(b, ')'); i < 0 || b[i+2] != 'T' {
				return false
			}
		}
		return err == nil && len(stats) > 0
	})
}

// Eventually waits for a condition for as long as an overloaded machine may take.
func Eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for began := time.Now(); ; {
		asked := time.Now()
		if cond() {
			return
		}
		if time.Since(began) > CallTimeout {
			t.Fatalf("never: %s", what)
		}
		// Else it takes the machine from what it waits for.
		time.Sleep(max(10*time.Millisecond, time.Since(asked), min(time.Since(began)/20, 50*time.Millisecond)))
	}
}

// InTries makes a scenario again, up to five times, while it returns false: a lease that must live has
// ended, as on a machine that stood still.
func InTries(t *testing.T, scenario func() bool) {
	t.Helper()
	for range 5 {
		if scenario() {
			return
		}
		t.Log("a lease has ended before its time: once again")
	}
	t.Fatal("a lease ends before its time again and again")
}

// InTime makes a call, and again as Agent.InTime does: after ENOLCK.
func InTime(call func() error) error {
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if err := call(); !errors.Is(err, unix.ENOLCK) || time.Since(began) > CallTimeout {
			return err
		}
	}
}

// OpenFile opens a file of a view, InTime.
func OpenFile(path string, flags int) (f *os.File, err error) {
	err = InTime(func() error {
		f, err = os.OpenFile(path, flags, 0o644)
		return err
	})
	return f, err
}

// Between waits for a while that chance decides: as long as a fault lasts.
func Between(least, most time.Duration) { time.Sleep(least + rand.N(most-least)) }
