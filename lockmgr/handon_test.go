package lockmgr_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
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

// A request that was handed on has some seconds to claim its entry: since it could come again, however
// long the pause was, and for each time that it was left. Then its entry is given up.
func TestClaimedEntryIsLeftAgain(t *testing.T) {
	const patience = 5 * time.Second
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		m, _ := f.manager(func(c *lockmgr.Config) { c.Backend = inLine{service} })
		defer func() { _ = m.Close(f.t.Context()) }()
		req := open("b", time.Minute, "d/f")
		req.HandedOn = true
		handOn := func(after, pause time.Duration) lockmgr.AcquisitionID {
			ended := make(chan error, 1)
			go func() {
				_, err := m.Acquire(f.t.Context(), req)
				ended <- err
			}()
			time.Sleep(after)
			m.HandOn()
			defer m.GoOn()
			on := new(lockmgr.HandedOnError)
			if err := <-ended; !errors.As(err, &on) {
				t.Fatal(err)
			}
			time.Sleep(pause)
			req.Resume = &on.Resume
			return on.Resume.ID
		}
		id := handOn(time.Second, 0)
		for _, pause := range []time.Duration{0, patience - time.Millisecond, 3 * patience} {
			if again := handOn(patience-time.Second, pause); again != id {
				t.Fatalf("after a pause of %v, the entry %v has become %v", pause, id, again)
			}
			time.Sleep(patience - time.Second)
		}
		if again := handOn(time.Second, 0); again != id {
			t.Errorf("the entry %v, which was left more than once, has become %v", id, again)
		}
		time.Sleep(patience + time.Second)
		if again := handOn(time.Second, 0); again == id {
			t.Errorf("the entry %v stands for a request that has not come", id)
		}
	})
}

// A session is not retired while a request that was handed on has nothing but its entry there.
func TestSessionOfALeftEntryStays(t *testing.T) {
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		m, _ := f.manager(func(c *lockmgr.Config) { c.Backend, c.KeysPerSession = inLine{service}, 1 })
		defer func() { _ = m.Close(f.t.Context()) }()
		reqs := []lockmgr.Request{open("b", time.Minute, "d/f"), open("c", time.Minute, "d/g")}
		ids := make([]lockmgr.AcquisitionID, len(reqs))
		for round, pause := range []time.Duration{3 * ttl, 0} {
			ended := make([]chan error, len(reqs))
			for i := range reqs {
				reqs[i].HandedOn = true
				ended[i] = make(chan error, 1)
				go func() {
					_, err := m.Acquire(f.t.Context(), reqs[i])
					ended[i] <- err
				}()
				synctest.Wait()
			}
			m.HandOn()
			for i := range reqs {
				on := new(lockmgr.HandedOnError)
				if err := <-ended[i]; !errors.As(err, &on) {
					f.t.Fatal(err)
				}
				if round > 0 && on.Resume.ID != ids[i] {
					f.t.Errorf("request %d: its entry %v has become %v", i, ids[i], on.Resume.ID)
				}
				ids[i], reqs[i].Resume = on.Resume.ID, &on.Resume
			}
			time.Sleep(pause)
			m.GoOn()
		}
	})
}

// inLine is a service with sessions whose requests wait in line, for ever, behind another mount.
type inLine struct{ *adoptable }

func (l inLine) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := l.adoptable.OpenSession(ctx, info, ttl)
	return waiting{s.(handedOn)}, err
}

type waiting struct{ handedOn }

func (waiting) Acquire(ctx context.Context, _ lockmgr.AcquireRequest) ([]lockmgr.Grant, error) {
	<-ctx.Done()
	if lockmgr.HandsOn(ctx) {
		return nil, lockmgr.ErrStands
	}
	return nil, ctx.Err()
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

func (adopter) Record(*journal.Part)                   {}
func (adopter) Recover(*journal.Records) error         { return nil }
func (adopter) Connect(context.Context) error          { return nil }
func (adopter) Freeze(context.Context) (func(), error) { return func() {}, nil }
func (adopter) AdoptSession(context.Context, lockmgr.SessionInfo, string, time.Duration, []lockmgr.Grant) (lockmgr.Session, error) {
	return nil, lockmgr.ErrSessionLost
}
