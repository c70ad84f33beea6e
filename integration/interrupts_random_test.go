package integration

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
)

// Programs on three mounts open a few files again and again, and are interrupted
// and killed at any time. None hangs, and in the end nothing is held.
func TestRandomInterrupts(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	v.inMemory()
	mounts := []*mount{v.mount("a"), v.mount("b"), v.mount("c")}
	end := time.Now().Add(max(longtest.For(t), 4*time.Second))
	var killed, signals atomic.Int64
	var failed sync.Map
	var working sync.WaitGroup
	for i := range 6 {
		working.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				path := mounts[i%3].path(fmt.Sprint("f", rand.IntN(2)))
				rounds := []call{
					{Op: "open", Path: path, Flags: wronly | create | appends},
					{Op: "write", FD: opened, Data: "x"},
					{Op: "pause", N: []int{0, 10, 50, 400}[rand.IntN(4)]},
					{Op: "close", FD: opened},
				}
				p := newAgent(t)
				if rand.IntN(2) == 0 { // by a caught signal, and then by itself
					pending := p.start(call{Op: "repeat", N: 10, Calls: rounds})
					deadline := time.Now().Add(callTimeout)
					for over := false; !over; {
						select {
						case r := <-pending:
							for failure := range r.Failed {
								failed.Store(failure, true)
							}
							over = true
						case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
							p.signal()
							signals.Add(1)
						}
						if time.Now().After(deadline) {
							t.Error("a program hangs")
							return
						}
					}
				} else {
					p.start(call{Op: "repeat", N: -1, Calls: rounds})
					time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				}
				p.kill() // hangs if it cannot die
				killed.Add(1)
			}
		})
	}
	working.Wait()
	failed.Range(func(failure, _ any) bool {
		if failure != "open EINTR" {
			t.Errorf("programs saw: %v", failure)
		}
		return true
	})
	eventually(t, "nothing is held", func() bool { return len(v.ls()) == 0 })
	p := newAgent(t)
	for _, m := range mounts {
		for i := range 2 {
			p.must(call{Op: "close", FD: p.open(m.path(fmt.Sprint("f", i)), wronly|nonblock)})
			eventually(t, "it is let go", func() bool { return len(v.ls()) == 0 })
		}
	}
	_, interrupted := failed.Load("open EINTR")
	t.Logf("%d programs killed, %d signals; EINTR seen: %v", killed.Load(), signals.Load(), interrupted)
}
