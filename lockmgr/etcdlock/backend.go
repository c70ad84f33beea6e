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

// Config configures New.
type Config struct {
	// Client is the connection to etcd. Required. The caller closes Client after all sessions.
	Client *clientv3.Client

	// Renewals configures a second connection, for renewals alone. Zero: they share Client.
	Renewals *DialConfig

	// Namespace and Name name the volume in all its mounts. Required; no slash, no NUL byte.
	Namespace, Name string

	// Machine is the machine that runs the embedded etcd; "" for any other etcd.
	Machine string

	// RequestTimeout is the age at which an unanswered request is doubted. The request fails as
	// soon as a later one is answered. Zero: 3 s, longer than most elections of etcd.
	RequestTimeout time.Duration

	// CheckInterval is the average time between two checks of a session's entries. A mount with
	// many entries checks less often. Zero: 4 s.
	CheckInterval time.Duration

	// JanitorInterval is the average time between two sweeps for entries without a lease. Sessions
	// without locks check at this interval too. Zero: 30 s.
	JanitorInterval time.Duration

	// Logger gets errors that no caller gets. Zero: discarded.
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
	service  atomic.Pointer[serviceSeen] // what Service found; nil before
	volume   atomic.Pointer[record]      // the volume record in force; nil before VolumeRecord
	leases   clientv3.LeaseID            // constant once there is a session; the first half of the leases of this mount's sessions
	told     *mountWatch
	outgoing lifetime.Outgoing

	watchStream atomic.Int64 // the number of the stream for new watches, see watch

	attached atomic.Int64 // the number of keys on the leases of sessions in Watch

	connecting sync.Mutex
	renewals   *clientv3.Client // GUARDED_BY(connecting); nil before the first session

	mu     sync.Mutex
	store  lifetime.Store // GUARDED_BY(mu)
	stamps *stamps        // GUARDED_BY(mu); of the store's era
}

var _ lockmgr.Backend = (*Backend)(nil)

// New returns the backend of a volume. New sends no request.
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
		stamps:   new(stamps),
	}
	b.told = newMountWatch(b)
	return b, nil
}

// txn sends one Txn once. All reads and writes of keys use txn, except the reads that a renewal
// waits for. Errors: those of fault.
func (b *Backend) txn(ctx context.Context, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	return b.txnOf(ctx, b.liveness.turns, cmps, then, els)
}

func (b *Backend) txnOf(ctx context.Context, turns chan struct{}, cmps []clientv3.Cmp, then, els []clientv3.Op) (*clientv3.TxnResponse, error) {
	if err := b.enter(ctx); err != nil {
		return nil, err
	}
	defer b.outgoing.Leave()
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

// newest returns the newest revision seen, and its era.
func (b *Backend) newest() (int64, lifetime.Era) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store.Newest, b.store.Era
}

func (b *Backend) era() (lifetime.Era, *stamps) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.store.Era, b.stamps
}

// saw notes the revision of an answer. Errors: ErrUnavailable if etcd was set back since newest.
func (b *Backend) saw(rev, newest int64, era lifetime.Era) error {
	if rev < newest {
		return b.setBack(newest, rev, era)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.store.Saw(rev, era)
	return nil
}

// setBack ends an era, in which revision from was seen before to. It returns ErrUnavailable.
func (b *Backend) setBack(from, to int64, era lifetime.Era) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.store.SetBack(era) {
		b.log.Error("etcd was set back while this mount was up: its locks are lost", "from", from, "to", to)
		b.stamps = new(stamps)
	}
	return fmt.Errorf("%w: it was set back from revision %d to %d", lockmgr.ErrUnavailable, from, to)
}

// forRenewals returns the connection for renewals. Errors: ErrUnavailable.
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

// Close closes the connection for renewals. The caller closes all sessions first.
func (b *Backend) Close() {
	b.connecting.Lock()
	defer b.connecting.Unlock()
	if b.renewals != nil {
		_ = b.renewals.Close()
		b.renewals = nil
	}
}

// connected reports whether the client knows of a working connection; an idle one might be dead.
func (b *Backend) connected() bool {
	switch b.client.ActiveConnection().GetState() {
	case connectivity.Ready, connectivity.Idle:
		return true
	default:
		return false
	}
}
