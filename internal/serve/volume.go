package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// StartTimeout bounds the first answers of the lock service, so that a command fails
// instead of hanging.
const StartTimeout = 15 * time.Second

// Volume is one volume, served at a mountpoint.
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
	service    lockmgr.Service  // GUARDED_BY(mu); that has the locks
	renewals   renewals         // GUARDED_BY(mu)
	taken      takeover         // GUARDED_BY(mu); the last one, if Count > 0
	otherIs    other            // GUARDED_BY(mu); whether another daemon serves the view
}

// other is whether another daemon serves a view, and has not handed it on.
type other int

const (
	otherUnknown other = iota // not looked for yet
	otherNone
	otherServes
)

// takeover is the last of a view's takeovers.
type takeover struct {
	metrics.Takeover
	at   time.Time
	died string // how the former daemon died; "": it did not
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

// Mountpoint returns where the view is or will be. Once the view is mounted, it is an
// absolute path without symbolic links.
func (v *Volume) Mountpoint() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mountpoint
}

// State returns the state of the mount's sessions; ok is false while nothing is mounted.
func (v *Volume) State() (state renew.State, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.locks == nil {
		return renew.Lost, false
	}
	return v.locks.State(), true
}

func (v *Volume) found(o other) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.otherIs = o
}

func (v *Volume) other() other {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.otherIs
}

func (v *Volume) setMounted(mountpoint string, locks *lockmgr.Manager, view *fs.FS) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mountpoint, v.locks, v.view = mountpoint, locks, view
}

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

// Run mounts the view, and serves it until ctx ends or it is unmounted. Errors: *RefusedError for
// a mistake in the configuration, before anything was started; ErrHandedOn.
func (v *Volume) Run(ctx context.Context) error {
	c := v.cfg
	peer, err := c.dial(ctx)
	if err != nil {
		v.found(otherServes) // when in doubt
		return err
	}
	var from predecessor
	if peer != nil {
		defer peer.Close()
		from = running{peer}
	}
	died := v.leftByDead(&c)
	if died != nil {
		from = died
	}
	c.taking = from != nil
	served := peer != nil && died == nil
	switch {
	case served:
		v.found(otherServes)
	case !c.hasView():
		v.found(otherNone)
	}
	err = v.prepare(ctx, &c)
	switch mounted := new(mounts.MountedError); {
	case errors.As(err, &mounted) && mounted.Mount.FSType == mounts.FSType:
		v.found(otherServes) // though it offers no takeover: its socket may be lost
	case !served:
		v.found(otherNone)
	}
	if err != nil {
		return err
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
	c.beginRecord(backend, v.log)
	record := &serviceSeen{RecordStore: backend}
	id, err := c.checkVolume(start, record)
	if err != nil {
		c.record.Void()
		return err
	}
	m, err := v.establish(start, &c, from, backend, id, record.service)
	if err != nil {
		c.record.Void() // the next try begins another one
		return err
	}
	c.Worker.Forget(c.Mountpoint)
	v.found(otherNone)
	v.sessionOpened(record.service)
	v.metrics.Mounted(m.locks.Stats, m.view.Stats, v.health.state)
	defer v.metrics.Mounted(nil, nil, nil)
	defer v.reportUnmatched()

	gone, stop := v.offer(&c, m, backend, id, record.service)
	err = v.serve(ctx, &c, m.view, id, gone)
	stop()
	select {
	case <-gone:
		m.life.Leave()
		return ErrHandedOn
	default:
	}
	return errors.Join(err, v.end(&c, m))
}

// establish takes the mount over from its predecessor. If there is none, or it cannot be, it begins anew.
func (v *Volume) establish(ctx context.Context, c *Config, from predecessor, backend Backend, id uuid.UUID, service lockmgr.Service) (m *mounted, err error) {
	if c.taking {
		m, err = v.takeOver(ctx, c, from, backend, id, service)
		if d, died := from.(*dead); died && cannot(err) {
			v.giveUp(c, d, err)
			c.beginRecord(backend, v.log)
		}
	}
	if !c.taking {
		m, err = v.begin(ctx, c, backend, id, service)
	}
	return m, err
}

// end unmounts the view, and then ends the session: writes reach the volume before their locks are
// released.
func (v *Volume) end(c *Config, m *mounted) error {
	err := v.unmount(c, m.view)
	c.record.Void() // there is no view that a next process could go on with
	if errors.Is(err, context.DeadlineExceeded) {
		m.life.Keep() // a write in the kernel ends with the process, or later
		return fmt.Errorf("writes are still under way after %v; their locks end with the lease: %w", c.Renew.TTL, err)
	}
	switch closeErr := c.closeLocks(m.locks); {
	case errors.Is(closeErr, lockmgr.ErrUnderWay):
		m.life.Keep()
		return errors.Join(err, fmt.Errorf("a lock could not be released within %v, and ends with the lease: %w", c.Renew.TTL, closeErr))
	case closeErr != nil:
		m.life.Leave() // the file stays, and the next mount proves us dead
		return errors.Join(err, closeErr)
	}
	m.life.Close()
	return err
}

// begin opens a session and mounts the view.
func (v *Volume) begin(ctx context.Context, c *Config, backend Backend, id uuid.UUID, service lockmgr.Service) (*mounted, error) {
	info, life, err := v.replaceDead(ctx, c, backend, id)
	if err != nil {
		return nil, err
	}
	locks, err := lockmgr.New(ctx, v.manager(c, backend, info))
	if err != nil {
		life.Leave()
		return nil, err
	}
	m := &mounted{nil, locks, life}
	c.recordMount(m, c.settings(id, service), metrics.Takeover{})
	c.recordService(backend)
	m.view, err = v.mount(ctx, c, locks)
	if err != nil {
		err = errors.Join(err, c.closeLocks(locks))
		life.Leave()
		return nil, err
	}
	return m, nil
}

func (v *Volume) manager(c *Config, backend Backend, info lockmgr.SessionInfo) lockmgr.Config {
	return lockmgr.Config{
		Backend: backend, Session: info, Renew: c.Renew, Logger: v.log, SlowWait: c.SlowWait, Keep: c.Keep, Observe: v.observer(), Record: c.record,
	}
}

func (v *Volume) viewConfig(c *Config, locks *lockmgr.Manager) fs.Config {
	return fs.Config{
		Source: c.Source, Locks: locks, Scope: c.Scope, Policy: c.enforced(), Wait: c.Wait, NameWait: c.NameWait, Sync: c.Sync,
		ReadLocks: c.ReadLocks, Flock: c.Flock, PodName: c.Pods.Name,
		AllowOther: c.AllowOther, Below: int64(c.below), Pool: c.Pool, Record: c.record, Deaths: c.deaths(), Logger: v.log,
	}
}

// hasView reports whether a view is at the mountpoint, dead or served.
func (c *Config) hasView() bool {
	m, ok, err := mounts.Find(c.Mountpoint)
	return err == nil && ok && m.FSType == mounts.FSType
}

// prepare completes c and waits until the volume opens files.
func (v *Volume) prepare(ctx context.Context, c *Config) error {
	if err := unless(ctx, c.prepare); err != nil {
		return err
	}
	v.health.found(c.findings)
	if !c.network {
		return nil
	}
	return v.await(ctx, c.Source)
}

func (c *Config) checkVolume(ctx context.Context, record volume.RecordStore) (id uuid.UUID, err error) {
	other := c.terms()
	other.Flock = other.Flock.Other()
	id, err = volume.Check(ctx, volume.Config{
		Source: c.Source, Namespace: c.Namespace, Name: c.Name, Record: record,
		Policies: c.policies(), Flock: c.terms().Flock, OtherFlock: other.Digest(), SetPolicy: c.SetPolicy, Alone: c.Embedded && !c.network,
	})
	if errors.As(err, new(*volume.NamesError)) {
		return id, refused(err)
	}
	return id, err
}

// replaceDead ends this machine's dead mounts' sessions, and marks this mount as alive.
func (v *Volume) replaceDead(ctx context.Context, c *Config, backend Backend, id uuid.UUID) (lockmgr.SessionInfo, *lifeline.Line, error) {
	info, err := c.session()
	if err != nil {
		return info, nil, err
	}
	next, err := newSuccessor(backend, c.StateDir, id, c.Source, info.BootID, v.log)
	if err != nil {
		return info, nil, err
	}
	life, err := lifeline.Hold(next.dir, next.dev)
	if err != nil {
		return info, nil, fmt.Errorf("lifeline: %w", err)
	}
	info.Lifeline = life.ID
	next.succeed(ctx)
	return info, life, nil
}

func (v *Volume) sessionOpened(service lockmgr.Service) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.service, v.renewals.answered = service, time.Now()
}

func (v *Volume) mount(ctx context.Context, c *Config, locks *lockmgr.Manager) (*fs.FS, error) {
	view, err := v.mountInTurn(ctx, c, locks)
	if err != nil {
		return nil, err
	}
	v.log.Info("mounted", slog.String("source", c.Source), slog.String("mountpoint", c.Mountpoint),
		slog.String("policy", strings.Join(c.policies(), " ")), slog.String("version", c.Version))
	v.setMounted(c.Mountpoint, locks, view)
	return view, nil
}

// mountInTurn mounts where nothing is mounted but dead views.
func (v *Volume) mountInTurn(ctx context.Context, c *Config, locks *lockmgr.Manager) (*fs.FS, error) {
	endTurn, err := mounts.Turn(ctx, c.StateDir, c.Mountpoint)
	if err != nil {
		return nil, err
	}
	defer endTurn()
	err = unless(ctx, func() error {
		if err := mounts.ClearStale(c.Mountpoint); err != nil {
			return err
		}
		return c.checkMountpoint()
	})
	if err != nil {
		return nil, err
	}
	if c.Guard {
		guard(v.log, c.Mountpoint)
	}
	if c.ForPods {
		noteUnshared(v.log, c.Mountpoint)
	}
	return fs.Mount(c.Mountpoint, v.viewConfig(c, locks))
}

// serve returns when the view is to end, or has ended. An error says why it could not go on.
func (v *Volume) serve(ctx context.Context, c *Config, view *fs.FS, id uuid.UUID, gone <-chan struct{}) (err error) {
	watching, watched := context.WithCancel(ctx)
	defer watched()
	go (&watcher{v, c, view, id}).run(watching)

	ended := make(chan error, 1)
	go func() { ended <- view.Wait() }()
	select {
	case <-ctx.Done():
		v.log.Info("unmounting")
	case <-gone:
	case err = <-ended:
		select {
		case <-gone: // the view has ended for us only
		default:
			if err == nil {
				v.log.Info("unmounted by somebody else")
			} else {
				err = fmt.Errorf("the view could not go on: %w", err)
			}
		}
	}
	v.setMounted(c.Mountpoint, nil, nil)
	return err
}

// unmount lets writes finish. If some are under way after the TTL, it fails with
// context.DeadlineExceeded, or waits if c.WaitForWrites.
func (v *Volume) unmount(c *Config, view *fs.FS) error {
	err := c.closeView(view)
	if !c.WaitForWrites || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	v.log.Warn("writes are still under way, and keep their locks until they end", slog.Any("error", err))
	for errors.Is(err, context.DeadlineExceeded) {
		err = c.closeView(view)
	}
	return err
}

// unless returns f's error, or ctx's if ctx ends first. f may hang in the volume, and then goes on
// alone.
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
		Node: node, BootID: boot, Mountpoint: c.Mountpoint, Version: c.Version, Started: time.Now(), Policies: c.policies(),
	}, nil
}

// guard closes the bare directory to programs. The end of the mount does not undo it.
func guard(log *slog.Logger, mountpoint string) {
	switch set, err := mounts.Guard(mountpoint); {
	case err != nil:
		log.Warn("the bare mountpoint cannot be guarded: while it is not mounted, programs can use it", slog.Any("error", err))
	case set:
		log.Info("the bare mountpoint is closed: it has mode 0 and is immutable (chattr -i and chmod undo that)", slog.String("mountpoint", mountpoint))
	}
}

func noteUnshared(log *slog.Logger, mountpoint string) {
	m, _, err := mounts.Containing(mountpoint)
	if err == nil && !m.Shared {
		log.Warn("the view shows in this mount namespace only: in Kubernetes, the daemon needs mountPropagation: Bidirectional, else mount --make-shared",
			slog.String("mountpoint", mountpoint), slog.String("on", m.Point))
	}
}

// reportUnmatched logs the rules that matched nothing. They may be misspelled.
func (v *Volume) reportUnmatched() {
	for _, r := range v.cfg.Policy.Unmatched() {
		v.log.Warn("a rule of the policy matched nothing that was used here", slog.String("rule", r.String()))
	}
}
