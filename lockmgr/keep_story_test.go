package lockmgr_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
)

// The same requests for exclusive locks get the same answers at the same time, whether locks are
// kept or not.
func TestKeepDecidesNothing(t *testing.T) {
	for seed := range longtest.Seeds(t, 50, 1500) {
		with, without := story(t, seed, true), story(t, seed, false)
		if with != without {
			t.Fatalf("seed %d\n%s\n---- without\n%s", seed, with, without)
		}
	}
}

// story is what 60 requests of one mount get, and when.
func story(t *testing.T, seed uint64, keep bool) string {
	var out strings.Builder
	inBubble(t, func(f *fixture) {
		m := f.m
		if keep {
			m, _ = f.manager(func(c *lockmgr.Config) { c.Keep = keepFor })
			defer func() {
				if err := m.Close(f.t.Context()); err != nil {
					t.Error(err)
				}
			}()
		}
		rnd := rand.New(rand.NewPCG(seed, 1))
		begin := time.Now()
		type answer struct {
			h   *lockmgr.Hold
			err error
		}
		waiting := map[int]chan answer{}
		var holds []*lockmgr.Hold
		var ids []int
		poll := func(when int) {
			synctest.Wait()
			for i := 0; i < when+1; i++ {
				ch := waiting[i]
				if ch == nil {
					continue
				}
				select {
				case a := <-ch:
					delete(waiting, i)
					fmt.Fprintf(&out, "%d at %v: %v\n", i, time.Since(begin), a.err != nil)
					if a.h != nil {
						holds, ids = append(holds, a.h), append(ids, i)
					}
				default:
				}
			}
		}
		multi := rnd.IntN(2) == 0
		for i := range 60 {
			time.Sleep(50 * time.Millisecond)
			poll(i)
			if len(holds) > 0 && rnd.IntN(2) == 0 {
				k := 0
				for j := range ids {
					if ids[j] < ids[k] {
						k = j
					}
				}
				if rnd.IntN(3) == 0 {
					k = rnd.IntN(len(holds))
				}
				fmt.Fprintf(&out, "release %d\n", ids[k])
				holds[k].Release()
				holds, ids = append(holds[:k], holds[k+1:]...), append(ids[:k], ids[k+1:]...)
				poll(i)
				continue
			}
			owner := string(rune('a' + rnd.IntN(4)))
			req := open(owner, []time.Duration{0, -1, -1, 3 * time.Second}[rnd.IntN(4)], fmt.Sprint("d/", rnd.IntN(2)))
			switch rnd.IntN(12) {
			case 1:
				if multi {
					req.Keys = []lockmgr.Key{file("d/0"), file("d/1")}
					req.Queue, req.Wait = false, time.Second
				}
			case 2:
				if multi {
					req = try(owner, tree("d"))
				}
			case 3:
				req = try(owner, file("d/0"))
			}
			fmt.Fprintf(&out, "request %d of %s: %v %v queue %v wait %v\n", i, owner, req.Keys, req.Mode, req.Queue, req.Wait)
			ch := make(chan answer, 1)
			waiting[i] = ch
			ctx := f.t.Context()
			go func() {
				h, err := acquire(ctx, m, req)
				ch <- answer{h, err}
			}()
			poll(i)
		}
		for len(waiting)+len(holds) > 0 {
			for _, h := range holds {
				h.Release()
			}
			holds, ids = nil, nil
			time.Sleep(5 * time.Second)
			before := len(waiting)
			poll(60)
			if len(waiting) == before && len(holds) == 0 && before > 0 {
				fmt.Fprintf(&out, "stuck: %d\n", before)
				m.Refuse()
			}
		}
	})
	return out.String()
}
