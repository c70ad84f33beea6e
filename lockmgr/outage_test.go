package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// A request that does not queue waits out an election of the lock service. In an
// outage that lasts, each after the first fails soon: counted from when the service
// was first seen not to answer.
func TestTryInAnOutage(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.Disconnect()
		got := f.later(try("a", file("f")))
		time.Sleep(4900 * time.Millisecond)
		f.svc.Connect()
		(<-got).Release()
		time.Sleep(time.Second)

		f.svc.Disconnect()
		f.fails(try("a", file("f")), lockmgr.ErrUnavailable, 5*time.Second)
		for range 3 {
			f.fails(try("a", file("f")), lockmgr.ErrUnavailable, 200*time.Millisecond)
			time.Sleep(time.Second)
		}
		f.svc.Connect()
		f.must(try("a", file("f"))).Release()
		time.Sleep(time.Second)

		f.svc.Disconnect() // another outage
		f.fails(try("a", file("f")), lockmgr.ErrUnavailable, 5*time.Second)
	})
}

// An outage begins with the first request that is not answered, whatever it is.
func TestOutageBeginsWithARenewal(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.must(open("a", 0, "f")).Release()
		synctest.Wait() // it is answered
		f.svc.Disconnect()
		time.Sleep(ttl / 2)
		f.fails(try("a", file("f")), lockmgr.ErrUnavailable, 5*time.Second-(ttl/2-ttl/5))
	})
}

// The wait for a holder is as long as it was asked for, however long an outage
// before.
func TestTryAfterAnOutageMeetsAHolder(t *testing.T) {
	inBubble(t, func(f *fixture) {
		other, _ := f.manager()
		theirs, err := other.Acquire(f.t.Context(), open("x", 0, "theirs"))
		if err != nil {
			f.t.Fatal(err)
		}
		f.fails(try("a", file("theirs")), lockmgr.ErrContended, time.Second)
		f.svc.Disconnect()
		start, got := time.Now(), make(chan error, 1)
		go func() {
			_, err := f.m.Acquire(f.t.Context(), try("a", file("theirs")))
			got <- err
		}()
		time.Sleep(3 * time.Second)
		f.svc.Connect()
		err = <-got
		if took := time.Since(start); !errors.Is(err, lockmgr.ErrContended) || took != 4*time.Second {
			f.t.Errorf("after %v: %v", took, err)
		}
		if errors.Is(err, context.Canceled) || !errors.Is(err, context.DeadlineExceeded) {
			f.t.Errorf("its caller did not cancel it: %v", err)
		}
		theirs.Release()
		if err := other.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// A caller that gives up is told so, and begins no outage.
func TestCancelledTry(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.Disconnect()
		ctx, cancel := context.WithCancel(f.t.Context())
		time.AfterFunc(time.Second, cancel)
		if _, err := f.m.Acquire(ctx, try("a", file("f"))); !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			f.t.Errorf("got %v", err)
		}
		f.fails(try("a", file("f")), lockmgr.ErrUnavailable, 5*time.Second)
	})
}

// one answers nothing about the file 'lost', and takes a second for the others.
type one struct{ lockmgr.Session }

func (s one) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	took := time.Second
	if req.Keys[0] == file("lost") {
		took = time.Hour
	}
	select {
	case <-time.After(took):
		return s.Session.Acquire(ctx, req)
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
	}
}

type ones struct{ *tap }

func (b ones) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.tap.OpenSession(ctx, info, ttl)
	return one{s}, err
}

// A request that is lost while others are answered is no outage since it was sent.
func TestOneLostRequestIsNoOutage(t *testing.T) {
	inBubble(t, func(f *fixture) {
		m, _ := f.manager(func(cfg *lockmgr.Config) { cfg.Backend = ones{f.svc} })
		go func() { // answered last half a second before the other fails
			time.Sleep(3500 * time.Millisecond)
			h, err := m.Acquire(f.t.Context(), try("a", file("f")))
			if err != nil {
				f.t.Error(err)
				return
			}
			h.Release()
		}()
		if _, err := m.Acquire(f.t.Context(), try("a", file("lost"))); !errors.Is(err, lockmgr.ErrUnavailable) {
			f.t.Fatal(err)
		}
		h, err := m.Acquire(f.t.Context(), try("a", file("f")))
		if err != nil {
			f.t.Fatal(err)
		}
		h.Release()
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Fatal(err)
		}
	})
}

// half answers that the file 'held' is another's, and nothing from then on; about other
// files nothing at all.
type half struct{ lockmgr.Session }

func (s half) Acquire(ctx context.Context, req lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	if req.Keys[0] == file("held") {
		req.Waits()
	}
	<-ctx.Done()
	return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, ctx.Err())
}

type halves struct{ *tap }

func (b halves) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := b.tap.OpenSession(ctx, info, ttl)
	return half{s}, err
}

// The wait for a holder that ends while the service is asked once more is one for a
// holder, and no outage.
func TestWaitForAHolderEndsWhileItIsAsked(t *testing.T) {
	inBubble(t, func(f *fixture) {
		m, _ := f.manager(func(cfg *lockmgr.Config) { cfg.Backend = halves{f.svc} })
		for _, w := range []struct {
			path string
			err  error
			took time.Duration
		}{{"held", lockmgr.ErrContended, time.Second}, {"lost", lockmgr.ErrUnavailable, 5 * time.Second}} {
			start := time.Now()
			_, err := m.Acquire(f.t.Context(), try("a", file(w.path)))
			if took := time.Since(start); !errors.Is(err, w.err) || errors.Is(err, context.Canceled) || took != w.took {
				f.t.Errorf("%s after %v: %v", w.path, took, err)
			}
		}
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}
