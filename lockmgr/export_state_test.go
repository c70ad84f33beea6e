package lockmgr_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// A Manager's state, after its way through the wire, gives another one the same holds: with owners,
// tokens and modes, lost if they were lost. Others are kept out until the new one releases.
func TestStateIsAdopted(t *testing.T) {
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		by := func(c *lockmgr.Config) { c.Backend = service }
		old, _ := f.manager(by)
		acquire := func(m *lockmgr.Manager, req lockmgr.Request) *lockmgr.Hold {
			f.t.Helper()
			h, err := m.Acquire(f.t.Context(), req)
			if err != nil {
				f.t.Fatal(err)
			}
			return h
		}
		read := open("reader", time.Minute, "d/read")
		read.Mode = lockmgr.Shared
		holds := []*lockmgr.Hold{
			acquire(old, open("writer", time.Minute, "d/f")), acquire(old, read),
			acquire(old, open("writer", time.Minute, "d/f")), acquire(old, open("lost", time.Minute, "d/lost")),
		}
		acquire(old, open("nobody", time.Minute, "d/nobody")) // which the view does not hand on
		for _, e := range mustEntries(f) {
			if e.Key.Path == "d/lost" {
				f.svc.Delete(e.Grant())
			}
		}
		eventuallyLost(f, holds[3])
		keys := []lockmgr.Key{file("d/f"), file("d/read"), file("d/f"), file("d/lost")}
		var grants []lockmgr.Grant
		for i, h := range holds {
			grants = append(grants, h.Grant(keys[i]))
		}
		old.HandOn()
		st, err := old.Export(holds, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		var wire bytes.Buffer
		if err := gob.NewEncoder(&wire).Encode(st); err != nil {
			f.t.Fatal(err)
		}
		st = nil
		if err := gob.NewDecoder(&wire).Decode(&st); err != nil {
			f.t.Fatal(err)
		}
		next, adopted, err := lockmgr.Adopt(f.t.Context(), lockmgr.Config{Backend: service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}, st)
		if err != nil {
			f.t.Fatal(err)
		}
		if service.cleaned != 0 {
			f.t.Error("something was removed before the new Manager has begun")
		}
		old.LetGo()
		next.Begin()
		synctest.Wait()
		if service.cleaned != 1 || len(service.claims) != 2 {
			f.t.Errorf("looked %d times for what nobody claims; claimed: %v", service.cleaned, service.claims)
		}
		for i, h := range adopted {
			if lost := h.Check() != nil; lost != (i == 3) || h.Owner() != holds[i].Owner() || !lost && h.Grant(keys[i]) != grants[i] {
				f.t.Errorf("hold %d is %v of %s, lost: %v", i, h.Grant(keys[i]), h.Owner(), h.Check())
			}
		}
		wants := open("other", 0, "d/f")
		refused := func(what string) {
			f.t.Helper()
			if _, err := f.m.Acquire(f.t.Context(), wants); !errors.Is(err, lockmgr.ErrContended) {
				f.t.Errorf("%s: %v", what, err)
			}
		}
		refused("with two adopted holds")
		adopted[0].Release()
		synctest.Wait()
		refused("with one")
		adopted[2].Release()
		synctest.Wait()
		acquire(f.m, wants).Release()
		also := open("other", 0, "d/read")
		also.Mode = lockmgr.Shared
		acquire(f.m, also).Release()
		adopted[1].Release()
		adopted[3].Release()
		if err := next.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// What nobody claims is removed after an outage of the service that outlasts a TTL.
func TestUnclaimedAreRemovedAfterAnOutage(t *testing.T) {
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session), away: 3 * ttl}
		old, _ := f.manager(func(c *lockmgr.Config) { c.Backend = service })
		old.HandOn()
		st, err := old.Export(nil, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		next, _, err := lockmgr.Adopt(f.t.Context(), lockmgr.Config{Backend: service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}, st)
		if err != nil {
			f.t.Fatal(err)
		}
		old.LetGo()
		next.Begin()
		time.Sleep(4 * ttl)
		service.mu.Lock()
		if service.cleaned != 1 {
			f.t.Errorf("it was removed %d times", service.cleaned)
		}
		service.mu.Unlock()
		if err := next.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
	})
}

// A session that has ended is not adopted, and nothing runs afterwards.
func TestEndedSessionIsNotAdopted(t *testing.T) {
	inBubble(t, func(f *fixture) {
		service := &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		old, _ := f.manager(func(c *lockmgr.Config) { c.Backend = service })
		h, err := old.Acquire(f.t.Context(), open("a", time.Minute, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		old.HandOn()
		st, err := old.Export([]*lockmgr.Hold{h}, nil)
		if err != nil {
			f.t.Fatal(err)
		}
		f.svc.Expire(service.sessions[st.Sessions[0].ID])
		cfg := lockmgr.Config{Backend: service, Renew: renew.Config{TTL: ttl, Clock: bubbleClock{}}}
		if _, _, err := lockmgr.Adopt(f.t.Context(), cfg, st); !errors.Is(err, lockmgr.ErrSessionLost) {
			f.t.Errorf("Adopt: %v", err)
		}
		old.GoOn()
		h.Release()
		_ = old.Close(f.t.Context())
	})
}

func mustEntries(f *fixture) []lockmgr.Entry {
	f.t.Helper()
	entries, err := f.svc.Entries(f.t.Context(), "")
	if err != nil {
		f.t.Fatal(err)
	}
	return entries
}

func eventuallyLost(f *fixture, h *lockmgr.Hold) {
	f.t.Helper()
	for range 100 {
		if h.Check() != nil {
			return
		}
		time.Sleep(time.Second)
	}
	f.t.Fatal("the hold is not lost")
}

// adoptable is a service in memory whose sessions can be handed on.
type adoptable struct {
	lockmgr.Backend
	mu       sync.Mutex
	sessions map[string]lockmgr.Session
	gone     map[string]bool // sessions that have ended
	claims   []lockmgr.Grant
	cleaned  int           // RemoveUnclaimed calls
	away     time.Duration // that RemoveUnclaimed needs
	life     *lifetime     // of the process that has the sessions; nil: it lives for ever
}

// lifetime is a process's.
type lifetime struct{ over atomic.Bool }

// next begins the life of another process. What the former one sends has no effect any more.
func (a *adoptable) next() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.life != nil {
		a.life.over.Store(true)
	}
	a.life = new(lifetime)
}

func (a *adoptable) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	s, err := a.Backend.OpenSession(ctx, info, ttl)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sessions[s.ID()] = s
	return handedOn{s, a, a.life}, nil
}

func (a *adoptable) Record(*journal.Part)                   {}
func (a *adoptable) Recover(*journal.Records) error         { return nil }
func (a *adoptable) Connect(context.Context) error          { return nil }
func (a *adoptable) Freeze(context.Context) (func(), error) { return func() {}, nil }
func (a *adoptable) AdoptSession(_ context.Context, _ lockmgr.SessionInfo, id string, _ time.Duration, claims []lockmgr.Grant) (lockmgr.Session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.claims = append(a.claims, claims...)
	if a.gone[id] {
		return nil, lockmgr.ErrSessionLost
	}
	return handedOn{a.sessions[id], a, a.life}, nil
}

type handedOn struct {
	lockmgr.Session
	a  *adoptable
	by *lifetime
}

func (a *adoptable) AdvisoryRows(ctx context.Context, tables ...lockmgr.Key) (lockmgr.AdvisoryRows, error) {
	return a.Backend.(lockmgr.AdvisoryBackend).AdvisoryRows(ctx, tables...)
}

func (a *adoptable) WatchAdvisory(ctx context.Context, changed func(lockmgr.Key, int64)) {
	a.Backend.(lockmgr.AdvisoryBackend).WatchAdvisory(ctx, changed)
}

func (s handedOn) PutAdvisory(ctx context.Context, p lockmgr.AdvisoryPut) (lockmgr.AdvisoryRows, bool, error) {
	if s.by != nil && s.by.over.Load() {
		return lockmgr.AdvisoryRows{}, false, lockmgr.ErrUnavailable
	}
	return s.Session.(lockmgr.AdvisorySession).PutAdvisory(ctx, p)
}

func (s handedOn) PutBelow(ctx context.Context, d lockmgr.Grant, entries []lockmgr.Entry) (int64, error) {
	return s.Session.(lockmgr.Delegator).PutBelow(ctx, d, entries)
}

func (s handedOn) MostBelow() int { return s.Session.(lockmgr.Delegator).MostBelow() }

func (s handedOn) Stands(ctx context.Context, d lockmgr.Grant) (int64, error) {
	return s.Session.(lockmgr.Delegator).Stands(ctx, d)
}

func (s handedOn) RemoveUnclaimed(ctx context.Context) error {
	select {
	case <-time.After(s.a.away):
	case <-ctx.Done():
		return ctx.Err()
	}
	s.a.mu.Lock()
	defer s.a.mu.Unlock()
	s.a.cleaned++
	return nil
}
func (handedOn) Disclaim([]lockmgr.Key, lockmgr.Mode, lockmgr.AcquisitionID) {}
func (handedOn) Abandon()                                                    {}

// A mount is not handed on while a broken lock waits for the last writes under it.
func TestNotHandedOnDuringABreak(t *testing.T) {
	inBubble(t, func(f *fixture) {
		old, _ := f.manager(func(c *lockmgr.Config) {
			c.Backend = &adoptable{Backend: f.svc, sessions: make(map[string]lockmgr.Session)}
		})
		h, err := old.Acquire(f.t.Context(), open("a", time.Minute, "f"))
		if err != nil {
			f.t.Fatal(err)
		}
		h.OnLost(func() { time.Sleep(3 * time.Second) })
		f.breakLock(file("f"))
		time.Sleep(time.Millisecond)
		for since := time.Duration(0); since < 3*time.Second; since += time.Second {
			if _, err := old.Export([]*lockmgr.Hold{h}, nil); err == nil {
				f.t.Errorf("handed on %v after the break", since)
			}
			time.Sleep(time.Second)
		}
		time.Sleep(time.Second)
		if _, err := old.Export([]*lockmgr.Hold{h}, nil); err != nil {
			f.t.Errorf("not handed on after the lock was given back: %v", err)
		}
		h.Release()
		_ = old.Close(f.t.Context())
	})
}
