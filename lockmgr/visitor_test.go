package lockmgr_test

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// However the programs of other mounts work on what visitors want, a visitor waits for few of
// them: for who has it or stands in line when it arrives, and for who opens it before the recall is
// heard, or while a directory is delegated once more, further down or to another mount. Those who
// wait for one file that is kept get it in order of arrival, before all who come later. A message
// takes 1 ms here, a program has a file for 5 ms, and opens the next one at once.
func TestVisitorsWaitIsBounded(t *testing.T) {
	const deep = "d/e/f/g/h/i/j"
	for name, s := range map[string]struct {
		mounts, workers int                                   // that work, and programs on each
		file            func(mount, worker, round int) string // what they open
		wants           []string                              // what the visitors do
		most            int                                   // opens of it by others, before a visitor's
		inOrder         bool
	}{
		"file, one thread":      {1, 1, func(_, _, _ int) string { return "f" }, []string{"f"}, 2, true},
		"file, many threads":    {1, 40, func(_, _, _ int) string { return "f" }, []string{"f"}, 2, true},
		"file, ping-pong":       {2, 4, func(_, _, _ int) string { return "f" }, []string{"f"}, 3, true},
		"directory":             {1, 20, func(_, w, r int) string { return fmt.Sprintf("d/%d", (w+r)%10) }, []string{"d/3"}, 5, false},
		"file in a directory":   {1, 20, func(_, _, r int) string { return fmt.Sprintf("d/%d", r%2) }, []string{"d/0"}, 5, false},
		"deep":                  {1, 10, func(_, w, r int) string { return fmt.Sprintf("%s/%d", deep, (w+r)%10) }, []string{deep + "/3"}, 10, false},
		"deep, on three mounts": {3, 1, func(_, w, r int) string { return fmt.Sprintf("%s/%d", deep, (w+r)%12) }, []string{deep + "/3"}, 10, false},
		"a directory for each": {3, 3, func(m, _, r int) string { return fmt.Sprintf("d/%d/%d", m, r%20) },
			[]string{"d/0/3", "d/1/3", "d/2/3"}, 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				svc := leases{lockmgrtest.NewMemory()}
				var mounts []*lockmgr.Manager
				var recalls atomic.Int64
				mount := func(name string) *lockmgr.Manager {
					m := &machine{}
					mgr, err := lockmgr.New(t.Context(), lockmgr.Config{
						Backend: svc.mount(m), Session: lockmgr.SessionInfo{Node: name}, Renew: renew.Config{TTL: ttl, Clock: m},
						Keep: time.Minute, Logger: slog.New(slog.DiscardHandler), Observe: func(e lockmgr.Event) {
							switch e.(type) {
							case lockmgr.LockRecalled, lockmgr.DirectoryRecalled:
								recalls.Add(1)
							}
						},
					})
					if err != nil {
						t.Fatal(err)
					}
					mounts = append(mounts, mgr)
					return mgr
				}
				var mu sync.Mutex
				opens := make(map[string]int) // by workers
				count := func(path string, n int) int {
					mu.Lock()
					defer mu.Unlock()
					opens[path] += n
					return opens[path]
				}
				var working sync.WaitGroup
				end := make(chan struct{})
				for i := range s.mounts {
					m := mount(fmt.Sprint(i))
					for w := range s.workers {
						working.Go(func() {
							for r := 0; !over(end); r++ {
								path := s.file(i, w, r)
								h, err := acquire(t.Context(), m, open(fmt.Sprint(i, ".", w), -1, path))
								if err != nil {
									t.Error(err)
									return
								}
								count(path, 1)
								<-time.After(5 * time.Millisecond)
								h.Release()
							}
						})
					}
				}
				visitors := []*lockmgr.Manager{mount("v0"), mount("v1"), mount("v2")}
				most, longest := 0, time.Duration(0)
				// A recalled lock is kept, and a directory delegated, after 10 s, and then after 20 s.
				for _, pause := range []time.Duration{300 * time.Millisecond, 0, 12 * time.Second, 0, 22 * time.Second} {
					<-time.After(pause)
					for _, path := range s.wants {
						var visiting sync.WaitGroup
						var order []int
						for i, v := range visitors {
							before, begin := count(path, 0), time.Now()
							visiting.Go(func() {
								h, err := v.Acquire(t.Context(), open("visitor", -1, path))
								if err != nil {
									t.Error(err)
									return
								}
								overtook := count(path, 0) - before
								mu.Lock()
								order = append(order, i)
								most, longest = max(most, overtook), max(longest, time.Since(begin))
								mu.Unlock()
								<-time.After(5 * time.Millisecond)
								h.Release()
							})
							<-time.After(4 * time.Millisecond)
						}
						visiting.Wait()
						if s.inOrder && fmt.Sprint(order) != "[0 1 2]" {
							t.Errorf("visitors have it in the order %v", order)
						}
					}
				}
				close(end)
				working.Wait()
				t.Logf("%d opens of others before a visitor's, at most, and %v; %d recalls", most, longest, recalls.Load())
				if recalls.Load() < 3 && s.mounts == 1 { // two mounts that fight for a file keep it the less
					t.Errorf("%d recalls", recalls.Load())
				}
				if most > s.most {
					t.Errorf("%d opens of others before a visitor's, want %d at most", most, s.most)
				}
				for _, m := range mounts {
					if err := m.Close(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		})
	}
}
