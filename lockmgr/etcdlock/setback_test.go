package etcdlock

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// An etcd that is set back ends the sessions that there are, once: answers to what was
// asked before do not end those that were opened since.
func TestSetBackOnce(t *testing.T) {
	b := &Backend{log: slog.New(slog.DiscardHandler), store: lifetime.NewStore(), stamps: new(stamps)}
	_, seen := b.era()
	_, before := b.newest()
	if err := b.saw(100, 0, before); err != nil {
		t.Fatal(err)
	}
	if err := b.saw(50, 100, before); !errors.Is(err, lockmgr.ErrUnavailable) || before.Err() == nil {
		t.Errorf("set back: %v, sessions go on: %v", err, before.Err() == nil)
	}
	seen.put(90, b.keys.stampOf("d")) // an answer of before is taken in late
	if _, seen := b.era(); len(seen.rev) != 0 {
		t.Error("it is taken in after the end of its era")
	}
	newest, after := b.newest()
	if err := b.saw(60, newest, after); err != nil {
		t.Errorf("asked after it: %v", err)
	}
	if err := b.saw(55, 100, before); !errors.Is(err, lockmgr.ErrUnavailable) || after.Err() != nil {
		t.Errorf("asked before it: %v, sessions go on: %v", err, after.Err() == nil)
	}
}

// An answer that comes late does not hide what is known from a later one.
func TestOlderStampOfALaterAnswer(t *testing.T) {
	s := &Session{b: &Backend{keys: newLayout("test", "v")}, stamps: new(stamps)}
	for _, rev := range []int64{90, 80} {
		s.stamps.put(rev, s.b.keys.stampOf("d"))
	}
	if k := file("d/f"); s.Undisturbed(k, lockmgr.FencingToken(85, 0), lockmgr.FencingToken(95, 0)) || !s.Undisturbed(k, lockmgr.FencingToken(91, 0), lockmgr.FencingToken(95, 0)) {
		t.Error("the directory was locked at 90, after 85 and before 91")
	}
}
