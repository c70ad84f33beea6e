package lockmgr_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// A request that was handed on, and does not wait for itself, is not asked again: what it would
// say now is of others that came with it.
func TestHandedOnIsNotAskedAgain(t *testing.T) {
	inBubble(t, func(f *fixture) {
		hold := f.must(open("a", time.Minute, "d/f"))
		asked := 0
		req := open("b", time.Minute, "d/f")
		req.HandedOn = true
		req.SelfWait = func(context.Context) bool { asked++; return asked > 1 }
		waits := func() error {
			ended := make(chan error, 1)
			go func() {
				h, err := f.m.Acquire(f.t.Context(), req)
				if err == nil {
					h.Release()
				}
				ended <- err
			}()
			synctest.Wait()
			f.m.HandOn()
			defer f.m.GoOn()
			return <-ended
		}
		for range 3 {
			on := new(lockmgr.HandedOnError)
			if err := waits(); !errors.As(err, &on) || asked != 1 {
				t.Fatalf("handed on: %v, and asked %d times", err, asked)
			}
			req.Resume = &on.Resume
		}
		hold.Release()
	})
}

// A state whose numbers are no indexes is refused.
func TestAdoptRefusesNonsense(t *testing.T) {
	inBubble(t, func(f *fixture) {
		for _, st := range []*lockmgr.State{
			{Locks: []lockmgr.LockState{{}}},
			{Left: []lockmgr.LeftState{{Session: -1}}},
			{Holds: []lockmgr.HoldState{{Locks: []int{0}}}},
			{Holds: []lockmgr.HoldState{{Sessions: []int{7}}}},
		} {
			cfg := lockmgr.Config{Backend: adopter{f.svc}, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}
			if _, _, err := lockmgr.Adopt(f.t.Context(), cfg, st); err == nil {
				t.Errorf("adopted %+v", st)
			}
		}
	})
}

// adopter is a Backend without sessions to adopt.
type adopter struct{ lockmgr.Backend }

func (adopter) Connect(context.Context) error          { return nil }
func (adopter) Freeze(context.Context) (func(), error) { return func() {}, nil }
func (adopter) AdoptSession(context.Context, lockmgr.SessionInfo, string, time.Duration, []lockmgr.Grant) (lockmgr.Session, error) {
	return nil, lockmgr.ErrSessionLost
}
