package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// StartTimeout bounds the first answers of the lock service, so that a command
// that cannot work says so instead of hanging.
const StartTimeout = 15 * time.Second

// Volume is a volume that is served, or to be served, at a mountpoint.
type Volume struct {
	cfg Config
	log *slog.Logger

	askers  askers
	probe   probe
	metrics *metrics.Volume
	health  health

	mu         sync.Mutex
	mountpoint string           // GUARDED_BY(mu)
	locks      *lockmgr.Manager // GUARDED_BY(mu); while the view is mounted
	view       *fs.FS           // GUARDED_BY(mu); as locks
	service    lockmgr.Service  // GUARDED_BY(mu); that keeps the locks
	renewals   renewals         // GUARDED_BY(mu)
}

// New returns a Volume that Run serves.
func New(cfg Config) *Volume { return newVolume(cfg, newAskers(1)) }

func newVolume(cfg Config, askers askers) *Volume {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	log := cfg.Logger.With(slog.String("namespace", cfg.Namespace), slog.String("name", cfg.Name))
	return &Volume{
		cfg: cfg, askers: askers, mountpoint: cfg.Mountpoint, metrics: cfg.Metrics.Volume(cfg.Namespace, cfg.Name),
		log: log, health: health{accepted: cfg.AcceptVolume, log: log},
	}
}

// Mountpoint returns where the view is, or will be: once it is mounted, an
// absolute path without symbolic links.
func (v *Volume) Mountpoint() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mountpoint
}

// State tells what the sessions of the mount are worth; ok is false while
// nothing is mounted.
func (v *Volume) State() (state renew.State, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.locks == nil {
		return renew.Lost, false
	}
	return v.locks.State(), true
}

// setMounted makes the mount's state known to others.
func (v *Volume) setMounted(mountpoint string, locks *lockmgr.Manager, view *fs.FS) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mountpoint, v.locks, v.view = mountpoint, locks, view
}

// observer is told what happens to locks.
func (v *Volume) observer() func(lockmgr.Event) {
	tellPods := func(lockmgr.Event) {}
	if v.cfg.Pods != nil {
		tellPods = v.cfg.Pods.Observer(v.cfg.Namespace, v.cfg.Name)
	}
	return func(e lockmgr.Event) {
		v.metrics.Observe(e)
		v.noteRenewal(e)
		tellPods(e)
	}
}

// Run mounts the view and serves it until ctx ends or somebody unmounts it.
// It fails with a *RefusedError, before anything was started, when what is
// asked for has to be asked otherwise.
func (v *Volume) Run(ctx context.Context) error {
	c := v.cfg
	if err := unless(ctx, c.prepare); err != nil {
		return err
	}
	v.health.found(c.findings)
	if c.network {
		if err := v.await(ctx, c.Source); err != nil {
			return err
		}
	}
	patience := StartTimeout
	if c.SetPolicy {
		patience += c.Renew.TTL // the session of a mount that has died may have to end first
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	backend, disconnect, err := c.Connect(start, v.log)
	if err != nil {
		return err
	}
	defer disconnect()
	record := &serviceSeen{RecordStore: backend}
	id, err := volume.Check(start, volume.Config{
		Source: c.Source, Namespace: c.Namespace, Name: c.Name, Record: record,
		Policy: c.Policy.Digest(), SetPolicy: c.SetPolicy, Alone: c.Embedded && !c.network,
	})
	if errors.As(err, new(*volume.NamesError)) {
		return refused(err)
	}
	if err != nil {
		return err
	}
	info, err := c.session()
	if err != nil {
		return err
	}
	next, err := newSuccessor(backend, c.StateDir, id, c.Source, info.BootID, v.log)
	if err != nil {
		return err
	}
	life, err := lifeline.Hold(next.dir, next.dev)
	if err != nil {
		return fmt.Errorf("the mark of a living mount: %w", err)
	}
	// Unless the session has ended, for whoever comes next to find it dead.
	defer life.Leave()
	info.Lifeline = life.ID
	next.succeed(start)
	locks, err := lockmgr.New(start, lockmgr.Config{
		Backend: backend, Session: info, Renew: c.Renew, Logger: v.log, SlowWait: c.SlowWait, Observe: v.observer(),
	})
	if err != nil {
		return err
	}
	v.mu.Lock()
	v.service, v.renewals.answered = record.service, time.Now() // it has opened a session
	v.mu.Unlock()
	if c.Guard {
		guard(v.log, c.Mountpoint)
	}
	if c.ForPods {
		noteUnshared(v.log, c.Mountpoint)
	}
	view, err := fs.Mount(c.Mountpoint, fs.Config{
		Source: c.Source, Locks: locks, Scope: c.Scope, Policy: c.Policy, Wait: c.Wait, NameWait: c.NameWait, Sync: c.Sync,
		ReadLocks: c.ReadLocks, PodName: c.Pods.Name,
		AllowOther: c.AllowOther, Pool: c.Pool, Logger: v.log,
	})
	if err != nil {
		return errors.Join(err, c.closeLocks(locks))
	}
	v.log.Info("mounted", slog.String("source", c.Source), slog.String("mountpoint", c.Mountpoint),
		slog.String("policy", c.Policy.Digest()), slog.String("version", c.Version))
	v.setMounted(c.Mountpoint, locks, view)
	v.metrics.Mounted(locks.Stats, view.Stats, v.health.state)
	defer v.metrics.Mounted(nil, nil, nil)
	defer v.reportUnmatched()

	watching, watched := context.WithCancel(ctx)
	defer watched()
	go (&watcher{v, &c, view, id}).run(watching)

	unmounted := make(chan struct{})
	go func() { view.Wait(); close(unmounted) }()
	select {
	case <-ctx.Done():
		v.log.Info("unmounting")
	case <-unmounted:
		v.log.Info("unmounted by somebody else")
	}
	v.setMounted(c.Mountpoint, nil, nil)
	// Programs that still write get what they wrote to the volume first; only
	// then are the locks let go.
	if err = c.closeView(view); errors.Is(err, context.DeadlineExceeded) {
		if !c.WaitForWrites {
			return fmt.Errorf("writes are still under way after %v; their locks end with the lease: %w", c.Renew.TTL, err)
		}
		v.log.Warn("writes are still under way, and keep their locks until they end", slog.Any("error", err))
		for errors.Is(err, context.DeadlineExceeded) {
			err = c.closeView(view)
		}
	}
	if closeErr := c.closeLocks(locks); closeErr != nil {
		return errors.Join(err, closeErr)
	}
	life.Close()
	return err
}

// unless returns what f does, or ctx's error: a volume that hangs is left alone
// when it is not wanted any more.
func unless(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Config) closeView(view *fs.FS) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Renew.TTL)
	defer cancel()
	return view.Close(ctx)
}

func (c *Config) closeLocks(locks *lockmgr.Manager) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Renew.TTL)
	defer cancel()
	return locks.Close(ctx)
}

// session describes this mount to those who look at its locks.
func (c *Config) session() (lockmgr.SessionInfo, error) {
	node := c.Node
	if node == "" {
		var err error
		if node, err = os.Hostname(); err != nil {
			return lockmgr.SessionInfo{}, err
		}
	}
	boot, err := boottime.BootID()
	if err != nil {
		return lockmgr.SessionInfo{}, err
	}
	return lockmgr.SessionInfo{
		Node: node, BootID: boot, Mountpoint: c.Mountpoint, Version: c.Version, Started: time.Now(),
	}, nil
}

// guard keeps programs from the bare directory while the view is away. It stays when the mount ends: the next one is as likely to be late.
func guard(log *slog.Logger, mountpoint string) {
	switch set, err := mounts.Guard(mountpoint); {
	case err != nil:
		log.Warn("the bare mountpoint cannot be guarded: while it is not mounted, programs can use it", slog.Any("error", err))
	case set:
		log.Info("the bare mountpoint has no rights and is immutable from now on (chattr -i and chmod take it back)", slog.String("mountpoint", mountpoint))
	}
}

// noteUnshared looks whether a view that will be at mountpoint shows elsewhere.
func noteUnshared(log *slog.Logger, mountpoint string) {
	m, _, err := mounts.Containing(mountpoint)
	if err == nil && !m.Shared {
		log.Warn("the view shows in this mount namespace only: in Kubernetes, the daemon needs mountPropagation: Bidirectional, else mount --make-shared",
			slog.String("mountpoint", mountpoint), slog.String("on", m.Point))
	}
}

// reportUnmatched names the rules that nothing has met, which may be misspelled.
func (v *Volume) reportUnmatched() {
	for _, r := range v.cfg.Policy.Unmatched() {
		v.log.Warn("a rule of the policy matched nothing that was used here", slog.String("rule", r.String()))
	}
}
