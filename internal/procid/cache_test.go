package procid

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"testing"
	"time"
)

// believed makes an answer last for the length of a test.
func (c *Cache) believed(tid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.callers[tid]; ok {
		e.read = time.Now().Add(time.Hour)
		c.callers[tid] = e
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(fds)
}

// A process that has exited is not taken for one that gets its number.
func TestCacheForgetsWhoHasExited(t *testing.T) {
	var c Cache
	t.Cleanup(c.Close)
	child := startChild(t, "child")
	pid := child.Process.Pid
	for range 2 {
		got, err := c.Lookup(pid)
		if err != nil || got.Process.PID != pid || got.Comm != "child" {
			t.Fatalf("Lookup = %+v, %v", got, err)
		}
		c.believed(pid)
	}
	child.Process.Kill()
	child.Wait()
	if got, err := c.Lookup(pid); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lookup of a reaped process = %+v, %v", got, err)
	}
}

func TestCacheOfThreads(t *testing.T) {
	var c Cache
	t.Cleanup(c.Close)
	gone := 0
	onThread(func(tid int) {
		want, err := Proc{}.Lookup(tid)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := c.Lookup(tid); err != nil || got != want {
				t.Errorf("Lookup(%d) = %+v, %v, want %+v", tid, got, err, want)
			}
		}
		gone = tid
	})
	for alive := true; alive; { // the thread ends some time after its goroutine
		_, err := os.Stat("/proc/self/task/" + strconv.Itoa(gone))
		alive = err == nil
	}
	c.believed(gone)
	if got, err := c.Lookup(gone); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Lookup of a thread that has ended = %+v, %v", got, err)
	}
}

func TestCacheIsBounded(t *testing.T) {
	before := descriptors(t)
	var c Cache
	dir, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range dir {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			_, _ = c.Lookup(pid) // some exit meanwhile
		}
		if n := descriptors(t) - before; n > cacheSize {
			t.Fatalf("%d descriptors", n)
		}
	}
	c.Close()
	if _, err := c.Lookup(os.Getpid()); err != nil {
		t.Error(err)
	}
	if n := descriptors(t) - before; n > 0 {
		t.Errorf("%d descriptors are left", n)
	}
}

func BenchmarkCache(b *testing.B) {
	var c Cache
	defer c.Close()
	for b.Loop() {
		if _, err := c.Lookup(os.Getpid()); err != nil {
			b.Fatal(err)
		}
	}
}
