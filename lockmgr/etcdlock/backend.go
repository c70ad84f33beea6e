package etcdlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// Config is what New needs.
type Config struct {
	// Client is the connection to etcd. Required; the caller closes it, after
	// the sessions.
	Client *clientv3.Client

	// Renewals says how to connect once more, for the renewals alone, when a session
	// is first opened: a flood of other requests keeps its own connection busy. The
	// zero value means that they go through Client.
	Renewals *DialConfig

	// Namespace and Name name the volume. All mounts of a volume spell them
	// alike. Required; without slash and NUL byte.
	Namespace, Name string

	// Machine is the machine whose embedded etcd it is; "" if it is not embedded.
	Machine string

	// RequestTimeout is when a request without an answer is doubted: it is given up if
	// a request that was sent later is answered. A try-lock ends then. The zero value
	// means 3 s, longer than an election of etcd usually takes.
	RequestTimeout time.Duration

	// CheckInterval is the average time between two checks by a session with locks: that its
	// entries stand, and that it has no entry that nobody here claims. A mount with
	// many entries checks less often. The zero value means 4 s.
	CheckInterval time.Duration

	// JanitorInterval is the average time after which the oldest session looks again for
	// entries without a lease. A session without locks makes its checks no more often. The
	// zero value means 30 s.
	JanitorInterval time.Duration

	// Logger gets errors that no caller gets. The zero value discards.
	Logger *slog.Logger
}

// Backend is the lockmgr.Backend of one volume in etcd.
type Backend struct {
	client   *clientv3.Client
	dial     *DialConfig // of renewals
	keys     layout
	machine  string
	timeout  time.Duration
	check    time.Duration
	janitor  time.Duration
	log      *slog.Logger
	liveness *liveness
	service  atomic.Pointer[serviceSeen] // what Service saw; nil before
	volume   atomic.Pointer[[]byte]      // the record that VolumeRecord saw; nil before
	leases   clientv3.LeaseID            // constant; how the leases of this mount's sessions begin
	told     *mountWatch

	watchStream atomic.Int64 // the number of the stream for new watches, see watch

	attached atomic.Int64 // how many keys the sessions that Watch have on their leases

	connecting sync.Mutex
	renewals   *clientv3.Client // GUARDED_BY(connecting); nil before the first session

	mu    sync.Mutex
	store lifetime.Store // GUARDED_BY(mu)
	trees *treeCache     // GUARDED_BY(mu); of the store's era
}

var _ lockmgr.Backend = (*Backend)(nil)

// New returns the backend of the volume cfg names. It sends no request.
func New(cfg Config) (*Backend, error) {
	if cfg.Client == nil {
		return nil, errors.New("etcdlock: no client")
	}
	for _, part := range []string{cfg.Namespace, cfg.Name} {
		if part == "" || strings.ContainsAny(part, "/\x00") {
			return nil, fmt.Errorf("etcdlock: %q cannot name a volume or its namespace", part)
		}
	}
	for name, d := range map[string]struct {
		of   *time.Duration
		zero time.Duration
	}{
		"request timeout":  {&cfg.RequestTimeout, 3 * time.Second},
		"janitor interval": {&cfg.JanitorInterval, 30 * time.Second},
		"check interval":   {&cfg.CheckInterval, 4 * time.Second},
	} {
		if *d.of < 0 {
			return nil, fmt.Errorf("etcdlock: %s %v is negative", name, *d.of)
		}
		*d.of = cmp.Or(*d.of, d.zero)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	b := &Backend{
		client:   cfg.Client,
		dial:     cfg.Renewals,
		keys:     newLayout(cfg.Namespace, cfg.Name),
		machine:  cfg.Machine,
		timeout:  cfg.RequestTimeout,
		check:    cfg.CheckInterval,
		janitor:  cfg.JanitorInterval,
		log:      cfg.Logger,
		liveness: newLiveness(),
		leases:   newMount(),
		store:    lifetime.NewStore(),
		trees:    new(treeCache),
	}
	b.told = newMountWatch(b)
	return b, nil
}

// txn sends one Txn, once, in its turn. All reads and writes of keys go through it, except
// the reads that a renewal waits for. Its errors are those of fault.
func (b *Backend) txn(ctx context.Context, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	return b.txnOf(ctx, b.liveness.turns, cmps, then, els)
}

// txnOf is txn that waits for one of turns.
func (b *Backend) txnOf(ctx context.Context, turns chan struct{}, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	select {
	case turns <- struct{}{}:
		defer func() { <-turns }()
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errUnsent, ctx.Err())
	}
	var newest int64
	var era lifetime.Era
	var resp *clientv3.TxnResponse
	err := b.patiently(ctx, func(ctx context.Context) (err error) {
		newest, era = b.newest()
		resp, err = b.client.Txn(ctx).If(cmps...).Then(then...).Else(els...).Commit()
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := b.saw(resp.Header.Revision, newest, era); err != nil {
		return nil, err
	}
	return resp, nil
}

// newest returns the largest revision that was seen of the store, and its era.
func (b *Backend) newest() (int64, lifetime.Era) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store.Newest, b.store.Era
}

// era returns what a session that is opened now belongs to.
func (b *Backend) era() (lifetime.Era, *treeCache) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store.Era, b.trees
}

// saw notes the revision of an answer. newest and the era are as they were when the
// request was sent. Errors: ErrUnavailable, when etcd was set back since.
func (b *Backend) saw(rev, newest int64, era lifetime.Era) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if rev >= newest {
		b.store.Saw(rev, era)
		return nil
	}
	if b.store.SetBack(era) {
		b.log.Error("etcd was set back while this mount was up: its locks are lost", "from", newest, "to", rev)
		b.trees = new(treeCache)
	}
	return fmt.Errorf("%w: it was set back from revision %d to %d", lockmgr.ErrUnavailable, newest, rev)
}

// forRenewals returns the connection of the renewals. Errors: ErrUnavailable.
func (b *Backend) forRenewals(ctx context.Context) (*clientv3.Client, error) {
	if b.dial == nil {
		return b.client, nil
	}
	b.connecting.Lock()
	defer b.connecting.Unlock()
	if b.renewals == nil {
		client, err := Dial(ctx, *b.dial)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
		}
		b.renewals = client
	}
	return b.renewals, nil
}

// Close ends the connection of the renewals. The sessions are closed before.
func (b *Backend) Close() {
	b.connecting.Lock()
	defer b.connecting.Unlock()
	if b.renewals != nil {
		_ = b.renewals.Close()
		b.renewals = nil
	}
}

// connected reports whether the client has a connection to a member that works, as far as
// it knows: an idle one may not.
func (b *Backend) connected() bool {
	switch b.client.ActiveConnection().GetState() {
	case connectivity.Ready, connectivity.Idle:
		return true
	default:
		return false
	}
}
