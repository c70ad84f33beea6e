package lockmgrtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

func TestMemoryConformance(t *testing.T) {
	lockmgrtest.Conformance(t, func(*testing.T) lockmgr.Backend { return lockmgrtest.NewMemory() }, lockmgrtest.Options{
		Ordered: true,
		Expire: func(_ *testing.T, b lockmgr.Backend, s lockmgr.Session) {
			b.(*lockmgrtest.Memory).Expire(s)
		},
		Remove: func(t *testing.T, b lockmgr.Backend, k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) {
			entries, err := b.Entries(t.Context(), k.Path)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range entries {
				if e.Key == k && e.Holder.AcquisitionID == id {
					b.(*lockmgrtest.Memory).Delete(e.Grant())
				}
			}
		},
	})
}

// While the service is away, a request without patience fails at once, and one with patience
// fails when the patience is over.
func TestMemoryDisconnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := lockmgrtest.NewMemory()
		s, err := m.OpenSession(t.Context(), lockmgr.SessionInfo{}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		ask := func(ctx context.Context, wait lockmgr.Wait) error {
			_, err := s.Acquire(ctx, lockmgr.AcquireRequest{
				Keys: []lockmgr.Key{{Path: "f"}}, Wait: wait, Holder: lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID()},
			})
			return err
		}
		m.Disconnect()
		if err := ask(t.Context(), lockmgr.NoWait); !errors.Is(err, lockmgr.ErrUnavailable) {
			t.Errorf("NoWait: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := ask(ctx, lockmgr.Queue); !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Queue: %v", err)
		}
		time.AfterFunc(time.Hour, m.Connect)
		if err := ask(t.Context(), lockmgr.Queue); err != nil {
			t.Errorf("Queue until it is back: %v", err)
		}

		// A mount that ends while the service is away leaves its entries to expiry.
		m.Disconnect()
		if err := s.Close(t.Context()); !errors.Is(err, lockmgr.ErrUnavailable) || m.Count() != 1 {
			t.Errorf("Close: %v, %d entries", err, m.Count())
		}
		m.Expire(s)
		if m.Count() != 0 {
			t.Errorf("%d entries after expiry", m.Count())
		}
	})
}
