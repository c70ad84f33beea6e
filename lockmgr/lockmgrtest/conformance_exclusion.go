package lockmgrtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
)

// testExclusion: many goroutines on three sessions take files and directories, one and
// several at a time, shared and not, and give up now and then. No two conflicting grants may
// overlap, and tokens must grow.
func testExclusion(t *bench) {
	const workers = 24
	rounds := 4
	if longtest.For(t.T) > 0 {
		rounds = 12
	}
	sessions := []lockmgr.Session{t.open(), t.open(), t.open()}
	files := []lockmgr.Key{File("a"), File("ab"), File("d/x"), File("d/y"), File("d/e/z")}
	trees := []lockmgr.Key{Tree("d"), Tree("d/e"), Tree("a")}
	var h history
	ctx := t.Context() // one that retries may have to wait for the others' last round
	var wg sync.WaitGroup
	for w := range workers {
		s := sessions[w%len(sessions)]
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for range rounds {
				req := Request(lockmgr.Queue, files[r.IntN(len(files))])
				switch r.IntN(8) {
				case 0:
					req = Request(lockmgr.Retry, trees[r.IntN(len(trees))])
				case 1:
					i := r.IntN(len(files) - 1)
					req = Request(lockmgr.Queue, files[i], files[i+1])
				case 2:
					req.Wait = lockmgr.NoWait
				case 3, 4, 5:
					req.Mode = lockmgr.Shared
				}
				grants, err := s.Acquire(ctx, req)
				if errors.Is(err, lockmgr.ErrContended) && ctx.Err() == nil {
					continue
				}
				if err != nil {
					t.Errorf("Acquire(%v): %v", req.Keys, err)
					return
				}
				if err := h.enter(grants); err != nil {
					t.Error(err)
				}
				if held, err := s.Held(ctx, grants); err != nil || slices.Contains(held, false) {
					t.Errorf("Held(%v): %v, %v", grants, held, err)
				}
				h.leave(grants)
				for _, g := range grants {
					if err := s.Release(context.WithoutCancel(ctx), g); err != nil {
						t.Errorf("Release(%v): %v", g, err)
					}
				}
			}
		})
	}
	wg.Wait()
	t.listed()
}

// history checks each grant when it is made: against those held now, and the largest token
// that each key was granted under.
type history struct {
	mu   sync.Mutex
	held []lockmgr.Grant
	past map[lockOf]int64
}

type lockOf struct {
	key  lockmgr.Key
	mode lockmgr.Mode
}

func (h *history) enter(grants []lockmgr.Grant) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, g := range grants {
		for _, other := range h.held {
			if other.Mode.Conflicts(g.Mode) && other.Key.Conflicts(g.Key) {
				errs = append(errs, fmt.Errorf("%v granted while %v is held", g, other))
			}
		}
		for p, token := range h.past {
			if p.mode.Conflicts(g.Mode) && p.key.Conflicts(g.Key) && token >= g.Token {
				errs = append(errs, fmt.Errorf("%v granted after token %d of %v", g, token, p))
			}
		}
	}
	h.held = append(h.held, grants...)
	return errors.Join(errs...)
}

// leave is called before the release, so that the next grant finds it done.
func (h *history) leave(grants []lockmgr.Grant) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.past == nil {
		h.past = make(map[lockOf]int64)
	}
	for _, g := range grants {
		k := lockOf{g.Key, g.Mode}
		h.past[k] = max(h.past[k], g.Token)
	}
	kept := h.held[:0]
	for _, o := range h.held {
		if o.AcquisitionID != grants[0].AcquisitionID {
			kept = append(kept, o)
		}
	}
	h.held = kept
}
