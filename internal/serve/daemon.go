package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/status"
)

// The pauses between two attempts to serve a volume grow from minRetry to maxRetry.
const (
	minRetry = time.Second
	maxRetry = 30 * time.Second
)

// maxHanging is how many views may hang before others can no longer be asked whether they
// answer.
const maxHanging = 8

// When another daemon has taken a view over, that daemon has ended if it does not answer for
// otherSilence, or if nothing is mounted for otherAbsence. A supervisor keeps the view of a worker
// that died for less than the one. A daemon whose file has changed mounts anew in less than the
// other.
const (
	otherSilence = time.Minute
	otherAbsence = 10 * time.Second
)

var (
	errUnmounted = errors.New("somebody unmounted it")
	errNotSet    = errors.New("not known yet")
)

// Spec is a volume that a Daemon has to serve. Config.Namespace and Config.Name identify
// it. Revision changes with any other field.
type Spec struct {
	Config
	Revision string
}

func (s *Spec) id() string { return s.Namespace + "/" + s.Name }

type server interface {
	Run(ctx context.Context) error
	Ready(ctx context.Context) error
	Notes() []string
	describe() status.View
	other() other
}

// Daemon serves a changing set of volumes. A volume waits only for the one that was at its
// mountpoint before.
type Daemon struct {
	log    *slog.Logger
	new    func(Config) server
	other  func(context.Context, Config) (mounted, answers bool) // lookForOther, but for tests
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // the volumes' goroutines

	mu       sync.Mutex
	volumes  map[string]*served       // GUARDED_BY(mu); by id
	points   map[string]chan struct{} // GUARDED_BY(mu); full while a volume is at that mountpoint
	patience time.Duration            // GUARDED_BY(mu); what a volume may take to end
	set      bool                     // GUARDED_BY(mu); Set was called
	served   bool                     // GUARDED_BY(mu); a volume has answered since the daemon began
	rejected error                    // GUARDED_BY(mu); see Reject
}

type served struct {
	id string

	// GUARDED_BY(Daemon.mu)
	want *Spec              // nil: not to be served any more
	last *Spec              // what was attempted last
	stop context.CancelFunc // ends the attempt that runs, or the pause before the next
	vol  server             // of the attempt that runs; nil if there is none
	err  error              // how the last attempt ended
	good bool               // it has answered
	has  other              // what the last attempt has found

	began time.Time
}

// tryFor is how long a new daemon is not ready because a volume neither answers nor
// fails.
const tryFor = 10 * time.Second

// tried reports whether the volume has answered or was tried. It needs Daemon.mu.
func (m *served) tried() bool { return m.good || m.err != nil || time.Since(m.began) >= tryFor }

// elsewhere reports whether another daemon serves the volume, with its open files. It needs Daemon.mu.
func (m *served) elsewhere() bool {
	if m.vol != nil {
		if o := m.vol.other(); o != otherUnknown {
			return o == otherServes
		}
	}
	return m.has == otherServes
}

// NewDaemon returns a Daemon that serves nothing yet. Its volumes share the descriptors
// that the process may have at this time.
func NewDaemon(log *slog.Logger) *Daemon {
	pool, askers := fs.NewPool(), newAskers(maxHanging)
	return newDaemon(log, func(c Config) server {
		c.Pool = pool
		return newVolume(c, askers)
	})
}

func newDaemon(log *slog.Logger, volume func(Config) server) *Daemon {
	d := &Daemon{log: log, new: volume, other: lookForOther, volumes: make(map[string]*served), points: make(map[string]chan struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// Set replaces the set of volumes. A volume whose Revision is the same is not touched.
func (d *Daemon) Set(specs []Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.set, d.rejected = true, nil
	wanted := make(map[string]*Spec)
	for _, s := range specs {
		wanted[s.id()] = &s
		d.patience = max(d.patience, 2*s.Renew.TTL)
	}
	for id, m := range d.volumes {
		if m.want != nil && (wanted[id] == nil || wanted[id].Revision != m.want.Revision) {
			m.stop()
		}
		m.want = wanted[id]
		delete(wanted, id)
	}
	for id, s := range wanted {
		m := &served{id: id, want: s, stop: func() {}, began: time.Now()}
		d.volumes[id] = m
		d.wg.Go(func() { d.keep(m) })
	}
}

// Reject notes why a new set could not be read. Everything stays as it is until the next
// Set.
func (d *Daemon) Reject(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rejected = err
}

// Rejected returns the error of Reject, or nil after a Set.
func (d *Daemon) Rejected() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rejected
}

// Close ends all volumes at the same time. Its error names those that do not end in time;
// their locks end with the process's leases.
func (d *Daemon) Close() error {
	d.cancel()
	ended := make(chan struct{})
	go func() { d.wg.Wait(); close(ended) }()
	d.mu.Lock()
	patience := d.patience
	d.mu.Unlock()
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
		d.mu.Lock()
		defer d.mu.Unlock()
		return fmt.Errorf("not unmounted cleanly after %v: %s; their locks end with the lease",
			patience, strings.Join(slices.Sorted(maps.Keys(d.volumes)), ", "))
	}
}

func (d *Daemon) keep(m *served) {
	pause := minRetry
	said, same := "", 0 // the last error, and how often it came in a row
	handedOn := false
	for {
		ctx, stop, spec := d.begin(m)
		if spec == nil {
			return
		}
		if handedOn {
			d.awaitOther(ctx, spec.Config)
		}
		if ctx.Err() != nil {
			stop()
			continue
		}
		began := time.Now()
		err := d.serve(ctx, m, spec)
		if handedOn = errors.Is(err, ErrHandedOn); handedOn {
			stop()
			continue
		}
		if ctx.Err() != nil { // another Spec is wanted, or none
			pause = minRetry
			stop()
			continue
		}
		if time.Since(began) > maxRetry {
			pause = minRetry
		}
		if same++; err.Error() != said {
			said, same = err.Error(), 1
		}
		level := slog.LevelWarn
		switch {
		case same&(same-1) != 0: // a long outage is logged at 1, 2, 4, 8, … times
			level = slog.LevelDebug
		case spec.Pods != nil:
			spec.Pods.NotServed(m.id, err)
		}
		d.log.Log(ctx, level, "a volume is not served; it is tried again", slog.String("namespace", spec.Namespace), slog.String("name", spec.Name),
			slog.Any("error", err), slog.Int("times", same), slog.Duration("in", pause))
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		stop()
		pause = min(2*pause, maxRetry)
	}
}

// awaitOther waits until the daemon that has taken a view over has ended, or ctx has. A volume that
// was handed on is not taken back when its Spec changes: this daemon is about to end, and the other
// one may follow the same file.
func (d *Daemon) awaitOther(ctx context.Context, c Config) {
	look := time.NewTicker(minRetry)
	defer look.Stop()
	mounted, answered := time.Now(), time.Now()
	for time.Since(mounted) < otherAbsence && time.Since(answered) < otherSilence {
		is, answers := d.other(ctx, c)
		if is {
			mounted = time.Now()
		}
		if answers {
			answered = time.Now()
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookForOther reports whether a view is mounted at the mountpoint, and whether a daemon answers for
// it. It does not ask the view, which may hang.
func lookForOther(ctx context.Context, c Config) (mounted, answers bool) {
	m, mounted, err := mounts.Find(c.Mountpoint)
	if err != nil {
		return !errors.Is(err, os.ErrNotExist), false // when in doubt, the other one's
	}
	if !mounted {
		return false, false
	}
	peer, err := handover.Dial(ctx, c.StateDir, m.Point)
	if err != nil {
		return true, false
	}
	peer.Close()
	return true, true
}

// begin returns the Spec that a volume serves until ctx ends; nil: it is not served any more.
func (d *Daemon) begin(m *served) (ctx context.Context, stop context.CancelFunc, spec *Spec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.want == nil || d.ctx.Err() != nil {
		delete(d.volumes, m.id)
		if m.last != nil {
			m.last.Metrics.Forget(m.last.Namespace, m.last.Name)
		}
		return nil, nil, nil
	}
	m.last = m.want
	ctx, m.stop = context.WithCancel(d.ctx)
	return ctx, m.stop, m.want
}

// serve makes one attempt, and returns nil only if ctx has ended.
func (d *Daemon) serve(ctx context.Context, m *served, spec *Spec) (err error) {
	vol := d.new(spec.Config)
	d.mu.Lock()
	m.vol = vol
	point := d.points[spec.Mountpoint]
	if point == nil {
		point = make(chan struct{}, 1)
		d.points[spec.Mountpoint] = point
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		if o := vol.other(); o != otherUnknown {
			m.has = o
		}
		m.vol, m.err = nil, err
	}()
	select {
	case point <- struct{}{}:
		defer func() { <-point }()
	case <-ctx.Done():
		return nil
	}
	if err = vol.Run(ctx); err == nil && ctx.Err() == nil {
		return errUnmounted
	}
	if err != nil && ctx.Err() != nil && !errors.Is(err, context.Canceled) {
		d.log.Warn("a volume was not unmounted cleanly", slog.String("namespace", spec.Namespace), slog.String("name", spec.Name), slog.Any("error", err))
	}
	return err
}

// Checks returns the checks of /readyz: ready when each volume answers or was tried, and at least
// one has answered. Later trouble is only shown: otherwise Kubernetes would replace this daemon
// first, on all nodes at once. A daemon is not ready while another one serves one of its volumes and
// does not hand it on: Kubernetes would end that one, and programs would lose their open files.
func (d *Daemon) Checks() []Check {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.set {
		return []Check{{Name: "configuration", Ready: func(context.Context) error { return errNotSet }}}
	}
	var checks []Check
	for _, id := range slices.Sorted(maps.Keys(d.volumes)) {
		m := d.volumes[id]
		checks = append(checks, Check{
			Name: id, Ready: func(ctx context.Context) error { return d.ready(ctx, m) },
			View:     func() status.View { return d.describe(m) },
			Notes:    func() []string { return d.notes(m) },
			Advisory: d.served && m.tried() && !m.elsewhere(),
		})
	}
	if err := d.rejected; err != nil {
		checks = append(checks, Check{Name: "configuration", Advisory: true, Ready: func(context.Context) error {
			return fmt.Errorf("the volumes are served as before: %w", err)
		}})
	}
	return checks
}

func (d *Daemon) describe(m *served) status.View {
	d.mu.Lock()
	vol, last := m.vol, m.last
	d.mu.Unlock()
	switch {
	case vol != nil:
		return vol.describe()
	case last != nil:
		return status.View{Source: last.Source, Mountpoint: last.Mountpoint}
	}
	return status.View{}
}

func (d *Daemon) notes(m *served) []string {
	d.mu.Lock()
	vol := m.vol
	d.mu.Unlock()
	if vol == nil {
		return nil
	}
	return vol.Notes()
}

func (d *Daemon) ready(ctx context.Context, m *served) error {
	d.mu.Lock()
	vol, last := m.vol, m.err
	d.mu.Unlock()
	err := errNotMounted
	if vol != nil {
		err = vol.Ready(ctx)
	}
	if err == nil {
		d.mu.Lock()
		m.good, d.served = true, true
		d.mu.Unlock()
	}
	if errors.Is(err, errNotMounted) && last != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return err
}
