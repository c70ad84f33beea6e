package lockmgr_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// What an unanswered request of this mount has left behind is no other owner's. A request for the
// key waits until it is removed. If it gets an error, then that the service does not answer.
func TestLeftoverIsNoOwner(t *testing.T) {
	for name, again := range map[string]lockmgr.Request{
		"the same":          try("a", file("d/f")),
		"another owner":     try("b", file("d/f")),
		"in line":           open("b", time.Minute, "d/f"),
		"with another key":  try("a", file("x"), file("d/f")),
		"its directory":     try("a", tree("d")),
		"a reader in line":  read("b", time.Minute, "d/f"),
		"on a full session": try("c", file("d/f"), file("more")),
	} {
		t.Run(name, func(t *testing.T) {
			sharded(t, func(f *fixture) {
				f.must(open("z", 0, "y", "z")) // fills a session
				f.svc.LoseAnswers(3 * time.Second)
				f.fails(open("a", 0, "d/f"), lockmgr.ErrUnavailable, 0)
				f.svc.LoseAnswers(0)
				now := again
				now.Wait = 0
				f.fails(now, lockmgr.ErrUnavailable, ttl/8)
				start := time.Now()
				f.must(again).Release()
				if took := time.Since(start); took != 3*time.Second-ttl/8 {
					f.t.Errorf("granted after %v", took)
				}
			})
		})
	}
}

// It is in the way of nothing else, and its session may end under it.
func TestLeftoverOfALostSession(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.svc.LoseAnswers(time.Second)
		f.fails(open("a", 0, "d/f"), lockmgr.ErrUnavailable, 0)
		f.svc.LoseAnswers(0)
		f.must(open("a", 0, "d/g")).Release()
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		f.must(open("b", time.Minute, "d/f")).Release()
		synctest.Wait()
		if keys, dirs := lockmgr.Slots(f.m); keys+dirs > 0 {
			f.t.Errorf("%d keys and %d directories are remembered", keys, dirs)
		}
	})
}
