package etcdlock_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// The end of a session is seen by each request of the session, though its watch shows nothing. The
// record that an operator has deleted is not put again.
func TestEndIsSeenWithoutAWatch(t *testing.T) {
	table := inode(t, 7)
	deleted := func(t *testing.T, etcd raw, s lockmgr.Session) {
		if _, err := etcd.Delete(t.Context(), etcd.admin("session/"+s.ID())); err != nil {
			t.Fatal(err)
		}
	}
	revoked := func(t *testing.T, etcd raw, s lockmgr.Session) { revoke(t, etcd.Client, s) }
	for name, test := range map[string]struct {
		end func(*testing.T, raw, lockmgr.Session)
		ask func(context.Context, lockmgr.Session) error
	}{
		"a renewal": {revoked, func(ctx context.Context, s lockmgr.Session) error { return s.Renew(ctx) }},
		"a look at its entries": {revoked, func(ctx context.Context, s lockmgr.Session) error {
			held := []lockmgr.Grant{{Key: file("f"), AcquisitionID: lockmgr.NewAcquisitionID(), Token: 1}}
			s.Watch(ctx, func() []lockmgr.Grant { return held }, func(lockmgr.Grant) {})
			return lockmgr.ErrSessionLost
		}},
		"an acquisition": {deleted, func(ctx context.Context, s lockmgr.Session) error {
			_, err := s.Acquire(ctx, request(lockmgr.NoWait, file("f")))
			return err
		}},
		"a row": {deleted, func(ctx context.Context, s lockmgr.Session) error {
			_, _, err := s.(lockmgr.AdvisorySession).PutAdvisory(ctx, rows(table, "a"))
			return err
		}},
		"a void row": {deleted, func(ctx context.Context, s lockmgr.Session) error {
			_, _, err := s.(lockmgr.AdvisorySession).PutAdvisory(ctx, lockmgr.AdvisoryPut{Table: table, Void: true})
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := dial(t)
			var answered atomic.Int64
			onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
				defer answered.Add(1)
				return x.send()
			})
			watchFlawed(client).deaf.Store(true)
			etcd := raw{dial(t), newName()}
			s := open(t, newBackend(t, client, etcd.name, func(c *etcdlock.Config) {
				c.JanitorInterval, c.CheckInterval = time.Hour, time.Millisecond
			}))
			eventually(t, "the mount has read what stands", func() bool { return answered.Load() >= 2 })
			test.end(t, etcd, s)
			if err := test.ask(within(t, patience), s); !errors.Is(err, lockmgr.ErrSessionLost) {
				t.Error(err)
			}
			select {
			case <-s.Done():
			default:
				t.Error("the session goes on")
			}
			if resp, err := etcd.Get(t.Context(), etcd.admin("session/"+s.ID())); err != nil || len(resp.Kvs) > 0 {
				t.Errorf("its record stands: %v, %v", resp, err)
			}
		})
	}
}
