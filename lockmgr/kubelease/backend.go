package kubelease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// Config is what New needs.
type Config struct {
	// Client reaches the API server. Required.
	Client *Client

	// Namespace and Name name the volume. All mounts of a volume spell them
	// alike. Required; without slash and NUL byte.
	Namespace, Name string

	// LeaseNamespace is the namespace of Kubernetes that has the Leases. The zero
	// value means Namespace.
	LeaseNamespace string

	// RequestTimeout bounds each request. The zero value means 3 s.
	RequestTimeout time.Duration

	// Janitor says how the janitor works. The zero value is right.
	Janitor JanitorConfig

	// Clock is what the sessions of others are judged by. nil: boottime.System.
	Clock boottime.Clock

	// Logger gets errors that no caller gets. The zero value discards.
	Logger *slog.Logger
}

// Backend is the lockmgr.Backend of one volume in a Kubernetes API server.
type Backend struct {
	client  *Client
	space   string
	names   layout
	timeout time.Duration
	clean   JanitorConfig
	log     *slog.Logger
	mirror  *mirror
	locks   *feed                  // of mirror
	present present                // sessions of this mount's own
	keeping atomic.Pointer[keeper] // nil while this mount is none
	volume  atomic.Pointer[record] // of the volume, in force; nil before VolumeRecord

	outgoing   lifetime.Outgoing // all but renewals
	unanswered unanswered

	// ctx ends with Close, which waits for running.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup
	follow  sync.Once // starts the watch, and keep
	sweep   sync.Once // starts the janitor

	refreshing chan struct{} // holds a token while all Leases are read; capacity 1
	peeks      flowcontrol.RateLimiter
}

var _ lockmgr.Backend = (*Backend)(nil)

// New returns the backend of the volume cfg names. It sends no request: the
// watch begins with the first session, or with the first wait.
func New(cfg Config) (*Backend, error) {
	if cfg.Client == nil {
		return nil, errors.New("kubelease: no client")
	}
	if cfg.Namespace == "" || cfg.Name == "" {
		return nil, errors.New("kubelease: the volume has no name, or no namespace")
	}
	if cfg.LeaseNamespace == "" {
		cfg.LeaseNamespace = cfg.Namespace
	}
	if problems := validation.IsDNS1123Label(cfg.LeaseNamespace); len(problems) > 0 {
		return nil, fmt.Errorf("kubelease: %q cannot be a namespace of Kubernetes: %s", cfg.LeaseNamespace, strings.Join(problems, "; "))
	}
	if cfg.RequestTimeout < 0 {
		return nil, fmt.Errorf("kubelease: request timeout %v is negative", cfg.RequestTimeout)
	}
	if cfg.RequestTimeout == 0 {
		cfg.RequestTimeout = 3 * time.Second
	}
	if cfg.Clock == nil {
		cfg.Clock = boottime.System{}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	names := newLayout(cfg.Namespace, cfg.Name)
	b := &Backend{
		client:  cfg.Client,
		space:   cfg.LeaseNamespace,
		names:   names,
		timeout: cfg.RequestTimeout,
		clean:   cfg.Janitor.withDefaults(),
		log:     cfg.Logger,
		mirror:  newMirror(names, cfg.Clock),
		peeks:   flowcontrol.NewTokenBucketRateLimiter(peeksPerSecond, peeksPerSecond),
		present: present{came: make(chan struct{}, 1)},

		refreshing: make(chan struct{}, 1),
	}
	b.locks = &feed{b: b, m: b.mirror, selector: names.selector(), from: cfg.Client.sessions}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b, nil
}

// Close ends the backend's goroutines. The sessions were closed before.
func (b *Backend) Close() {
	b.cancel()
	b.running.Wait()
}

// start starts the watch, and keep.
func (b *Backend) start() {
	b.follow.Do(func() {
		b.running.Go(func() { b.locks.follow(b.ctx) })
		b.running.Go(b.keep)
	})
}

// mirrored starts the watch, if need be, and returns once the state was read.
// Errors: ErrUnavailable, wrapping ctx's if that ended the call.
func (b *Backend) mirrored(ctx context.Context) error {
	b.start()
	select {
	case <-b.mirror.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: the locks could not be read: %w", lockmgr.ErrUnavailable, ctx.Err())
	case <-b.ctx.Done():
		return fmt.Errorf("%w: the backend is closed", lockmgr.ErrUnavailable)
	}
}

// reach returns when the mirror shows everything up to rev. It waits for the
// watch, which takes milliseconds while it stands, and otherwise reads all Leases.
func (b *Backend) reach(ctx context.Context, rev int64, e *listener) error {
	late := time.NewTimer(watchLate)
	defer late.Stop()
	for {
		b.mirror.mu.Lock()
		there := b.mirror.asOf >= rev
		b.mirror.mu.Unlock()
		if there {
			return nil
		}
		select {
		case <-e.ch:
		case <-late.C:
			return b.refresh(ctx, rev)
		case <-ctx.Done():
			return retry.Ended(ctx)
		}
	}
}

// watchLate is when a request does not wait for the watch any longer.
const watchLate = 250 * time.Millisecond

// refresh reads all Leases, unless another request has just done so.
func (b *Backend) refresh(ctx context.Context, rev int64) error {
	select {
	case b.refreshing <- struct{}{}:
		defer func() { <-b.refreshing }()
	case <-ctx.Done():
		return retry.Ended(ctx)
	}
	b.mirror.mu.Lock()
	there := b.mirror.asOf >= rev
	b.mirror.mu.Unlock()
	if there {
		return nil
	}
	all, err := b.locks.list(ctx, 0)
	if err != nil {
		return err
	}
	return b.mirror.replace(all)
}
