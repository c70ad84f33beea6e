package etcdlock_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// three is a session on what to its client are three members.
type three struct {
	lockmgr.Session
	name  string // of its volume
	links []*link
	log   *logged
}

func onThree(t *testing.T) *three {
	t.Helper()
	s := &three{name: newName(), links: []*link{newLink(t), newLink(t), newLink(t)}, log: &logged{}}
	var endpoints []string
	for _, l := range s.links {
		endpoints = append(endpoints, l.endpoint())
	}
	log := slog.New(slog.NewTextHandler(io.MultiWriter(s.log, t.Output()), nil))
	client, err := etcdlock.Dial(t.Context(), etcdlock.DialConfig{Endpoints: endpoints, DialTimeout: patience, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	const timeout = 2500 * time.Millisecond
	b, err := etcdlock.New(etcdlock.Config{Client: client, Namespace: "test", Name: s.name, RequestTimeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	s.Session = open(t, hasty{b, timeout})
	return s
}

// freezes freezes a member that is asked in its turn, and asks until it is left. Where the others are
// slow as well, gRPC may break the frozen connection first, and asks it no more: then once again.
func (s *three) freezes(t *testing.T, ask func()) {
	t.Helper()
	l := s.links[1]
	for range 5 {
		answered := 0
		eventually(t, "the client is connected to the member", func() bool {
			before := l.passed.Load()
			ask()
			if l.passed.Load() > before {
				answered++
			}
			return answered > 5 // three of them may be greetings
		})
		l.frozen.Lock()
		for range 12 { // four of them of this member
			ask()
			if s.log.has("others are asked\" member=" + l.endpoint() + " ") {
				t.Cleanup(l.frozen.Unlock)
				return
			}
		}
		l.frozen.Unlock()
	}
	t.Fatal("the frozen member is asked again and again")
}

// A member whose connection stands and that does not answer is left, and the
// others are asked. Of what it was asked nothing stays. (How long it is left alone:
// TestAvoided.)
func TestFrozenMember(t *testing.T) {
	t.Parallel()
	s := onThree(t)
	asked, granted := 0, 0
	s.freezes(t, func() {
		_, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file(fmt.Sprint("f", asked))))
		asked++
		switch {
		case err == nil:
			granted++
		case !errors.Is(err, lockmgr.ErrUnavailable):
			t.Fatal(err)
		}
	})
	must(t, s, lockmgr.Queue, file("after"))
	b := newBackend(t, dial(t), s.name)
	eventually(t, "what was granted stands, and nothing else", func() bool { return len(entries(t, b)) == granted+1 })
}

// Renewals are not asked of such a member either.
func TestFrozenMemberAndRenewal(t *testing.T) {
	t.Parallel()
	s := onThree(t)
	s.freezes(t, func() {
		if err := s.Renew(within(t, 500*time.Millisecond)); err != nil && !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Fatal(err)
		}
	})
	eventually(t, "it is renewed", func() bool { return s.Renew(within(t, patience)) == nil })
}

// A majority is never avoided, whoever does not answer.
func TestFrozenMajority(t *testing.T) {
	t.Parallel()
	s := onThree(t)
	for _, l := range s.links {
		l.frozen.Lock()
	}
	for i := range 4 {
		if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file(fmt.Sprint("f", i)))); !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("of a service that does not answer: %v", err)
		}
	}
	for _, l := range s.links {
		l.frozen.Unlock()
	}
	must(t, s, lockmgr.Queue, file("f"))
}
