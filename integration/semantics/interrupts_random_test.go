package semantics

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Programs on three mounts open a few files again and again, and are interrupted
// and killed at any time. None hangs, and in the end nothing is held.
func TestRandomInterrupts(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	mounts := []*lab.Mount{v.Mount("a"), v.Mount("b"), v.Mount("c")}
	end := time.Now().Add(max(longtest.For(t), 4*time.Second))
	var killed, signals atomic.Int64
	var failed sync.Map
	var working sync.WaitGroup
	for i := range 6 {
		working.Go(func() {
			for time.Now().Before(end) && !t.Failed() {
				path := mounts[i%3].Path(fmt.Sprint("f", rand.IntN(2)))
				rounds := []lab.Call{
					{Op: "open", Path: path, Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND},
					{Op: "write", FD: lab.Opened, Data: "x"},
					{Op: "pause", N: []int{0, 10, 50, 400}[rand.IntN(4)]},
					{Op: "close", FD: lab.Opened},
				}
				p := lab.NewAgent(t)
				if rand.IntN(2) == 0 { // by a caught signal, and then by itself
					pending := p.Start(lab.Call{Op: "repeat", N: 10, Calls: rounds})
					deadline := time.Now().Add(lab.CallTimeout)
					for over := false; !over; {
						select {
						case r := <-pending:
							for failure := range r.Failed {
								failed.Store(failure, true)
							}
							over = true
						case <-time.After(time.Duration(rand.IntN(40)) * time.Millisecond):
							p.Signal()
							signals.Add(1)
						}
						if time.Now().After(deadline) {
							t.Error("a program hangs")
							return
						}
					}
				} else {
					p.Start(lab.Call{Op: "repeat", N: -1, Calls: rounds})
					time.Sleep(time.Duration(rand.IntN(300)) * time.Millisecond)
				}
				p.Kill() // hangs if it cannot die
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
	lab.Eventually(t, "nothing is held", func() bool { return len(v.LS()) == 0 })
	p := lab.NewAgent(t)
	for _, m := range mounts {
		for i := range 2 {
			p.Must(lab.Call{Op: "close", FD: p.Open(m.Path(fmt.Sprint("f", i)), unix.O_WRONLY|unix.O_CREAT|unix.O_NONBLOCK)})
			lab.Eventually(t, "it is let go", func() bool { return len(v.LS()) == 0 })
		}
	}
	_, interrupted := failed.Load("open EINTR")
	t.Logf("%d programs killed, %d signals; EINTR seen: %v", killed.Load(), signals.Load(), interrupted)
}
