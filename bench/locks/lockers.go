package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/renew"
)

// ttl is lockfs mount's default.
const ttl = 15 * time.Second

// namespace is that of all volumes of the bench.
const namespace = "bench"

// locker is a system in one process: its connection and, except for leases, its session.
type locker interface {
	// lock returns when key is held, with a function that releases it.
	lock(ctx context.Context, key string) (unlock func(context.Context) error, err error)
	// close ends the session.
	close(ctx context.Context) error
}

// locker opens a system's session on a volume, over the i-th connection.
func (b *bench) locker(ctx context.Context, c *cluster, i int, system, volume string) (locker, error) {
	if system == kubernetes {
		return b.kube.manager(ctx, volume, ttl)
	}
	client, err := c.client(ctx, i)
	if err != nil {
		return nil, err
	}
	return newLocker(ctx, system, client, volume, ttl)
}

// newLocker opens the session of a system on etcd.
func newLocker(ctx context.Context, system string, client *clientv3.Client, volume string, ttl time.Duration) (locker, error) {
	prefix := prefixOf(system, volume)
	switch system {
	case "txn":
		lease, err := client.Grant(ctx, int64(ttl/time.Second))
		if err != nil {
			return nil, err
		}
		return &txns{client, lease.ID, prefix}, nil
	case "mutex":
		session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl/time.Second)))
		return &mutexes{session, prefix}, err
	case "leases":
		alive, end := context.WithCancel(context.Background())
		return &leases{client, prefix, ttl, alive, end}, nil
	case "session":
		b, err := newBackend(client, volume)
		if err != nil {
			return nil, err
		}
		session, err := b.OpenSession(ctx, lockmgr.SessionInfo{Node: "bench"}, ttl)
		return &sessions{session}, err
	case "lockfs":
		return newManager(ctx, client, volume, ttl, lockmgr.SessionInfo{Node: "bench"})
	case "flock":
		m, err := newManager(ctx, client, volume, ttl, lockmgr.SessionInfo{Node: "bench"})
		if err != nil {
			return nil, err
		}
		return newFlocks(m)
	}
	return nil, fmt.Errorf("no system %q", system)
}

func prefixOf(system, volume string) string {
	if system == "lockfs" || system == "session" {
		return "/locks/" + namespace + "/" + volume + "/"
	}
	return "/others/" + namespace + "/" + volume + "/"
}

func holder() lockmgr.Holder {
	return lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "bench", PID: os.Getpid(), Comm: "locks", Since: time.Now()}
}

var errTaken = errors.New("the key is taken")

// acquireTxn is half of a bare pair of Txns, the lease's owner the other.
func acquireTxn(ctx context.Context, client *clientv3.Client, lease clientv3.LeaseID, key string) (rev int64, err error) {
	value, err := json.Marshal(holder())
	if err != nil {
		return 0, err
	}
	resp, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, string(value), clientv3.WithLease(lease))).
		Commit()
	if err != nil {
		return 0, err
	}
	if !resp.Succeeded {
		return 0, errTaken
	}
	return resp.Header.Revision, nil
}

type txns struct {
	client *clientv3.Client
	lease  clientv3.LeaseID
	prefix string
}

func (t *txns) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	key = t.prefix + key
	rev, err := acquireTxn(ctx, t.client, t.lease, key)
	return func(ctx context.Context) error {
		resp, err := t.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(key), "=", rev)).
			Then(clientv3.OpDelete(key)).
			Commit()
		if err == nil && !resp.Succeeded {
			return errTaken
		}
		return err
	}, err
}

func (t *txns) close(ctx context.Context) error {
	_, err := t.client.Revoke(ctx, t.lease)
	return err
}

type mutexes struct {
	session *concurrency.Session
	prefix  string
}

func (m *mutexes) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	mutex := concurrency.NewMutex(m.session, m.prefix+key)
	return mutex.Unlock, mutex.Lock(ctx)
}

func (m *mutexes) close(context.Context) error { return m.session.Close() }

type leases struct {
	client *clientv3.Client
	prefix string
	ttl    time.Duration
	alive  context.Context // of those that are kept
	end    context.CancelFunc
}

func (l *leases) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	lease, err := l.client.Grant(ctx, int64(l.ttl/time.Second))
	if err != nil {
		return nil, err
	}
	if _, err := acquireTxn(ctx, l.client, lease.ID, l.prefix+key); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		_, err := l.client.Revoke(ctx, lease.ID)
		return err
	}, nil
}

// keep renews all leases of the client, as a lock that is held for long needs.
func (l *leases) keep(ctx context.Context) error {
	all, err := l.client.Leases(ctx)
	if err != nil {
		return err
	}
	for _, lease := range all.Leases {
		answers, err := l.client.KeepAlive(l.alive, lease.ID)
		if err != nil {
			return err
		}
		go func() {
			for range answers {
			}
		}()
	}
	return nil
}

func (l *leases) close(context.Context) error {
	l.end()
	return nil
}

func newBackend(client *clientv3.Client, volume string) (*etcdlock.Backend, error) {
	return etcdlock.New(etcdlock.Config{Client: client, Namespace: namespace, Name: volume})
}

type sessions struct{ session lockmgr.Session }

func (s *sessions) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	k, err := lockmgr.FileKey(key)
	if err != nil {
		return nil, err
	}
	grants, err := s.session.Acquire(ctx, lockmgr.AcquireRequest{Keys: []lockmgr.Key{k}, Wait: lockmgr.Queue, Holder: holder()})
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return s.session.Release(ctx, grants[0]) }, nil
}

func (s *sessions) close(ctx context.Context) error { return s.session.Close(ctx) }

type manager struct {
	*lockmgr.Manager
	closeBackend func() // nil if it has nothing to close
}

func newManager(ctx context.Context, client *clientv3.Client, volume string, ttl time.Duration, info lockmgr.SessionInfo) (*manager, error) {
	b, err := newBackend(client, volume)
	if err != nil {
		return nil, err
	}
	return manage(ctx, b, ttl, info)
}

func manage(ctx context.Context, b lockmgr.Backend, ttl time.Duration, info lockmgr.SessionInfo) (*manager, error) {
	m, err := lockmgr.New(ctx, lockmgr.Config{
		Backend: b, Session: info, Renew: renew.Config{TTL: ttl}, Logger: slog.New(slog.DiscardHandler),
	})
	return &manager{Manager: m}, err
}

// The release returns at once, as the view's. The next lock of the same key waits for it.
func (m *manager) lock(ctx context.Context, key string) (func(context.Context) error, error) {
	k, err := lockmgr.FileKey(key)
	if err != nil {
		return nil, err
	}
	hold, err := m.Acquire(ctx, lockmgr.Request{
		Owner: lockmgr.Owner(key), Holder: holder(), Keys: []lockmgr.Key{k}, Queue: true, Wait: -1,
	})
	if err != nil {
		return nil, err
	}
	return func(context.Context) error { hold.Release(); return nil }, nil
}

func (m *manager) close(ctx context.Context) error {
	err := m.Close(ctx)
	if m.closeBackend != nil {
		m.closeBackend()
	}
	return err
}
