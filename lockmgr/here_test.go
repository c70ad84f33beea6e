package lockmgr_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// acquire is what a view does for each request.
func acquire(ctx context.Context, m *lockmgr.Manager, req lockmgr.Request) (*lockmgr.Hold, error) {
	if h := m.AcquireHere(req); h != nil {
		return h, nil
	}
	return m.Acquire(ctx, req)
}

// AcquireHere grants what is kept here and what the owner has, without the service. For all else
// it returns nil, leaves nothing, and nobody is told of a request.
func TestAcquireHere(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var ended []lockmgr.RequestEnded
		m, _ := f.manager(func(c *lockmgr.Config) {
			c.Keep = keepFor
			c.Observe = func(e lockmgr.Event) {
				if e, ok := e.(lockmgr.RequestEnded); ok {
					ended = append(ended, e)
				}
			}
		})
		mount := f.m
		f.m = m
		f.svc.Disconnect()
		if h := m.AcquireHere(open("a", time.Minute, "d/f")); h != nil {
			t.Error("granted what only the service can grant")
		}
		f.svc.Connect()
		first := f.use("a", file("d/f"))
		kept := f.use("a", file("d/f"))
		ended = nil

		f.svc.Disconnect()
		a := m.AcquireHere(open("a", time.Minute, "d/f"))
		if a == nil || a.Check() != nil || a.Token(file("d/f")) <= kept || kept <= first {
			t.Fatalf("a kept lock is not taken over: %v", a)
		}
		again := m.AcquireHere(open("a", time.Minute, "d/f"))
		if again == nil || again.Token(file("d/f")) != a.Token(file("d/f")) {
			t.Errorf("the owner does not share its lock: %v", again)
		}
		if len(ended) != 2 || !ended[0].Kept || !ended[1].Joined {
			t.Errorf("told of %+v", ended)
		}
		for name, req := range map[string]lockmgr.Request{
			"another owner's":                open("b", time.Minute, "d/f"),
			"another owner's and a free one": open("b", time.Minute, "d/g", "d/f"),
			"its own and a free one":         open("a", time.Minute, "d/f", "d/g"),
			"none":                           open("a", time.Minute),
			"a directory above":              try("a", tree("d")),
		} {
			if h := m.AcquireHere(req); h != nil {
				t.Errorf("%s: granted", name)
			}
		}
		if s := m.Stats(); s.Held != 1 || s.Kept != 0 || s.Waiting != 0 || len(ended) != 2 {
			t.Errorf("left %+v, told of %d", s, len(ended))
		}
		f.svc.Connect()
		b := f.later(open("b", time.Minute, "d/f"))
		if h := m.AcquireHere(open("c", time.Minute, "d/f")); h != nil {
			t.Error("granted what another waits for")
		}
		a.Release()
		again.Release()
		synctest.Wait()
		(<-b).Release()
		if err := m.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if h := m.AcquireHere(open("a", time.Minute, "d/f")); h != nil {
			t.Error("granted by a manager that is closed")
		}
		f.m = mount
	})
}
