package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// inLine has n requests wait behind first, which is let go last. done is called
// with what each gets.
func (f *fixture) inLine(ctx context.Context, n int, req func(i int) lockmgr.Request, done func(i int, h *lockmgr.Hold, err error)) *sync.WaitGroup {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			h, err := f.m.Acquire(ctx, req(i))
			done(i, h, err)
		})
		synctest.Wait()
	}
	return &wg
}

func (f *fixture) granted(i int, h *lockmgr.Hold, err error) {
	if err != nil {
		f.t.Errorf("request %d: %v", i, err)
		return
	}
	time.Sleep(time.Millisecond)
	h.Release()
}

// What a line on one mount costs grows with its length, not with its square:
// whoever is next is woken, and nobody else.
func TestStepsOfALine(t *testing.T) {
	const n = 300
	each := func(i int) lockmgr.Request { return open(fmt.Sprint("w", i), -1, "f") }
	for name, test := range map[string]func(f *fixture){
		"writers, one after the other": func(f *fixture) {
			first := f.must(open("first", 0, "f"))
			wg := f.inLine(f.t.Context(), n, each, f.granted)
			first.Release()
			wg.Wait()
		},
		"the processes of one owner": func(f *fixture) {
			first := f.must(open("first", 0, "f"))
			wg := f.inLine(f.t.Context(), n, func(int) lockmgr.Request { return open("pod", -1, "f") }, f.granted)
			first.Release()
			wg.Wait()
		},
		"readers, all at once": func(f *fixture) {
			first := f.must(open("first", 0, "f"))
			wg := f.inLine(f.t.Context(), n, func(i int) lockmgr.Request { return read(fmt.Sprint("r", i), -1, "f") }, f.granted)
			first.Release()
			wg.Wait()
		},
		"readers and writers in turns": func(f *fixture) {
			first := f.must(open("first", 0, "f"))
			wg := f.inLine(f.t.Context(), n, func(i int) lockmgr.Request {
				if i%3 == 0 {
					return open(fmt.Sprint("w", i), -1, "f")
				}
				return read(fmt.Sprint("r", i), -1, "f")
			}, f.granted)
			first.Release()
			wg.Wait()
		},
		"readers of what many read, and a writer": func(f *fixture) {
			var holds []*lockmgr.Hold
			for i := range n {
				holds = append(holds, f.must(read(fmt.Sprint("r", i), 0, "f")))
			}
			wg := f.inLine(f.t.Context(), 1, each, f.granted)
			for _, h := range holds {
				h.Release()
			}
			wg.Wait()
		},
		"of two keys": func(f *fixture) {
			first := f.must(open("first", 0, "f", "g"))
			wg := f.inLine(f.t.Context(), n, func(i int) lockmgr.Request { return open(fmt.Sprint("w", i), -1, "g", "f") }, f.granted)
			first.Release()
			wg.Wait()
		},
		"all give up": func(f *fixture) {
			first := f.must(open("first", 0, "f"))
			ctx, cancel := context.WithCancel(f.t.Context())
			wg := f.inLine(ctx, n, each, func(i int, h *lockmgr.Hold, err error) {
				if !errors.Is(err, context.Canceled) {
					f.t.Errorf("request %d: %v", i, err)
				}
			})
			cancel()
			wg.Wait()
			first.Release()
		},
		"waiting for themselves, once there is a holder": func(f *fixture) {
			f.svc.Disconnect()
			asked := make([]int, n)
			wg := f.inLine(f.t.Context(), n, func(i int) lockmgr.Request {
				req := open(fmt.Sprint("w", i), -1, "f")
				req.SelfWait = func(context.Context) bool { asked[i]++; return false }
				return req
			}, f.granted)
			f.svc.Connect()
			wg.Wait()
			for i, times := range asked {
				if times > 1 || times == 0 && i > 0 {
					f.t.Errorf("request %d was asked %d times", i, times)
				}
			}
		},
		"directories beside many files": func(f *fixture) {
			var holds []*lockmgr.Hold
			for i := range n {
				holds = append(holds, f.must(open("a", 0, fmt.Sprintf("d/%d/f", i))))
			}
			for i := range n {
				f.must(try("a", tree(fmt.Sprintf("e/%d", i)))).Release()
				f.fails(try("b", tree("d")), lockmgr.ErrContended, 0)
			}
			for _, h := range holds {
				h.Release()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				before := lockmgr.Steps(f.m)
				test(f)
				synctest.Wait()
				if steps := lockmgr.Steps(f.m) - before; steps > 20*n {
					t.Errorf("%d steps for %d requests", steps, n)
				}
				if keys, dirs := lockmgr.Slots(f.m); keys+dirs > 0 {
					t.Errorf("%d keys and %d directories are remembered", keys, dirs)
				}
			})
		})
	}
}

// Those in line have it in order of arrival, also when some of them give up.
func TestOrderOfALine(t *testing.T) {
	inBubble(t, func(f *fixture) {
		const n = 60
		first := f.must(open("first", 0, "f"))
		ctx, cancel := context.WithCancel(f.t.Context())
		defer cancel()
		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				ctx := ctx
				if i%3 != 0 {
					ctx = f.t.Context()
				}
				h, err := f.m.Acquire(ctx, open(fmt.Sprint(i), -1, "f"))
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				h.Release()
			})
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		first.Release()
		wg.Wait()
		var want []int
		for i := range n {
			if i%3 != 0 {
				want = append(want, i)
			}
		}
		if fmt.Sprint(order) != fmt.Sprint(want) {
			f.t.Errorf("granted in the order %v", order)
		}
	})
}

// A request that came while nobody had the lock finds out that its own ancestor got
// it, though others are in line between them.
func TestAncestorGetsTheLockLater(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.Disconnect()
		parent := f.later(open("parent", -1, "f"))
		synctest.Wait()
		other := f.later(open("other", -1, "f"))
		synctest.Wait()
		req := open("child", -1, "f")
		asked := false
		req.SelfWait = func(context.Context) bool { asked = true; return true }
		got := make(chan error, 1)
		go func() {
			_, err := f.m.Acquire(f.t.Context(), req)
			got <- err
		}()
		synctest.Wait()
		if asked {
			f.t.Error("asked about nobody")
		}
		f.svc.Connect()
		h := <-parent
		if err := <-got; !errors.Is(err, lockmgr.ErrDeadlock) {
			f.t.Errorf("got %v", err)
		}
		h.Release()
		(<-other).Release()
	})
}

// That many wait long is found out by one question to the service.
func TestLongWaitsOfALine(t *testing.T) {
	inBubble(t, func(f *fixture) {
		counted := &counting{tap: f.svc}
		m, _ := f.manager(func(c *lockmgr.Config) { c.Backend, c.SlowWait = counted, time.Second })
		holder := f.must(open("holder", 0, "f")) // on the other mount
		f.m, m = m, f.m
		wg := f.inLine(f.t.Context(), 50, func(i int) lockmgr.Request { return open(fmt.Sprint(i), -1, "f") }, f.granted)
		time.Sleep(5 * time.Second)
		if n := counted.listings.Load(); n != 1 {
			f.t.Errorf("the entries were asked for %d times", n)
		}
		holder.Release()
		wg.Wait()
		f.m, m = m, f.m
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

type counting struct {
	*tap
	listings atomic.Int64
}

func (c *counting) Rivals(ctx context.Context, k lockmgr.Key) ([]lockmgr.Entry, error) {
	c.listings.Add(1)
	return c.tap.Rivals(ctx, k)
}

// A request that waits on its own mount for one of several keys leaves the others free on other
// mounts: the owners in its way may be waiting for them.
func TestNothingKeptInLine(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		first, second := f.must(open("pod", 0, "a", "shared")), f.must(open("second", 0, "b"))
		third := f.later(open("pod", -1, "b", "shared")) // waits for the second
		synctest.Wait()
		first.Release()
		h, err := other.Acquire(f.t.Context(), open("other", time.Minute, "shared"))
		if err != nil {
			f.t.Fatal(err)
		}
		h.Release()
		second.Release()
		(<-third).Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// A request that does not queue waits for those in line as long as it would for a
// holder, and not for as long as for a service that does not answer, when the lock
// was being given back as it came: they may wait for something else, which its caller
// keeps from ending.
func TestTryBehindALine(t *testing.T) {
	inBubble(t, func(f *fixture) {
		first, other := f.must(open("first", 0, "f")), f.must(open("other", 0, "g"))
		next := f.later(open("next", -1, "f", "g"))
		synctest.Wait()
		f.svc.Disconnect()
		first.Release()
		time.AfterFunc(time.Second/2, f.svc.Connect)
		f.fails(try("a", file("f")), lockmgr.ErrContended, time.Second)
		other.Release()
		(<-next).Release()
	})
}
