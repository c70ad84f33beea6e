package etcdlock_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// onThree returns a session on what to its client are three members.
func onThree(t *testing.T) (lockmgr.Session, []*link) {
	t.Helper()
	links := []*link{newLink(t), newLink(t), newLink(t)}
	var endpoints []string
	for _, l := range links {
		endpoints = append(endpoints, l.endpoint())
	}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	client, err := etcdlock.Dial(t.Context(), etcdlock.DialConfig{Endpoints: endpoints, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	b, err := etcdlock.New(etcdlock.Config{Client: client, Namespace: "test", Name: newName(), RequestTimeout: 2500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return open(t, b), links
}

// A member whose connection stands and that does not answer costs one request
// its time. The others are asked from then on; it was one in three, until gRPC's
// ping had failed.
func TestFrozenMember(t *testing.T) {
	s, links := onThree(t)
	// All three are connected.
	for i := range 10 {
		must(t, s, lockmgr.NoWait, file(fmt.Sprint("before", i)))
	}
	links[1].frozen.Lock()
	t.Cleanup(links[1].frozen.Unlock)
	failed := 0
	for i := range 30 {
		_, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file(fmt.Sprint("f", i))))
		if err != nil && !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Fatal(err)
		}
		if err != nil {
			failed++
		}
	}
	if failed > 1 {
		t.Errorf("%d of 30 requests failed", failed)
	}
}

// Renewals are not asked of such a member either, once two seconds of them failed.
func TestFrozenMemberAndRenewal(t *testing.T) {
	s, links := onThree(t)
	for range 10 {
		if err := s.Renew(within(t, patience)); err != nil {
			t.Fatal(err)
		}
	}
	links[1].frozen.Lock()
	t.Cleanup(links[1].frozen.Unlock)
	failed := 0
	for range 60 {
		if err := s.Renew(within(t, 500*time.Millisecond)); err != nil {
			failed++
		}
	}
	if failed > 6 {
		t.Errorf("%d of 60 renewals failed", failed)
	}
}

// A majority is never avoided, whoever does not answer.
func TestFrozenMajority(t *testing.T) {
	s, links := onThree(t)
	for _, l := range links {
		l.frozen.Lock()
	}
	for i := range 4 {
		if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file(fmt.Sprint("f", i)))); !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("of a service that does not answer: %v", err)
		}
	}
	for _, l := range links {
		l.frozen.Unlock()
	}
	must(t, s, lockmgr.Queue, file("f"))
}
