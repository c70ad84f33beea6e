package serve

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/lockmgr"
)

// ErrHandedOn: another daemon serves the mount now.
var ErrHandedOn = errors.New("the mount is handed on to another daemon")

// snapshot is what one daemon tells the next. Its descriptors are the view's, then the lock
// service's, then the lifeline.
type snapshot struct {
	View     *fs.State
	Locks    *lockmgr.State
	Lifeline string
	Service  int // how many descriptors the lock service has
	Taken    int // how often the view was taken over before
	Deaths   int // of these, from a daemon that had died
}

// mounted is what a mount consists of.
type mounted struct {
	view  *fs.FS
	locks *lockmgr.Manager
	life  *lifeline.Line
}

// settings are what must be equal in two daemons of which one takes over from the other.
func (c *Config) settings(id uuid.UUID, service lockmgr.Service) map[string]string {
	s := map[string]string{
		"namespace": c.Namespace, "name": c.Name, "volume": id.String(), "source": c.Source, "mountpoint": c.Mountpoint,
		"lock service": service.ID.String(), "policy": strings.Join(c.policies(), " "), "flock": string(c.terms().Flock),
		"scope": string(c.Scope), "sync": string(c.Sync),
		"read-locks": strconv.FormatBool(c.ReadLocks), "allow-other": strconv.FormatBool(c.AllowOther),
	}
	// The former daemon's directories show what is mounted below SOURCE only while its mount
	// namespace exists.
	if below, err := mounts.Below(c.Source); err != nil || len(below) > 0 {
		s[namespaceSetting] = mountNamespace()
	}
	return s
}

const namespaceSetting = "mount namespace"

// dial connects to a daemon that serves the mountpoint. nil: there is none.
func (c *Config) dial(ctx context.Context) (*handover.Peer, error) {
	if !c.TakeOver {
		return nil, nil
	}
	at, err := mounts.Resolve(c.Mountpoint)
	if err != nil {
		return nil, nil // there is no such directory yet
	}
	peer, err := handover.Dial(ctx, c.StateDir, at)
	if errors.Is(err, handover.ErrNone) {
		return nil, nil
	}
	c.Mountpoint = at
	return peer, err
}

// offer lets another daemon take the mount over until stop. gone is closed when one has.
func (v *Volume) offer(c *Config, m *mounted, thing Backend, id uuid.UUID, service lockmgr.Service) (gone <-chan struct{}, stop func()) {
	over := make(chan struct{})
	if m.view.Covered() { // and who serves that may offer it, by the same name
		v.log.Warn("an upgrade will not be able to take this mount over", slog.String("error", "another mount is at its mountpoint"))
		return over, func() {}
	}
	o := &offering{v: v, m: m, backend: thing, record: c.record, gone: over}
	stop, err := handover.Listen(c.StateDir, c.Mountpoint, handover.Offer{
		Settings: func() map[string]string { return c.settings(id, service) },
		Pause:    o.pause, Leaving: o.record.Withdraw, Resume: o.resume, Gone: o.letGo, Logger: v.log,
	})
	if err != nil {
		v.log.Warn("an upgrade will not be able to take this mount over", slog.Any("error", err))
		return over, func() {}
	}
	return over, stop
}

// offering hands one mount on. Its methods are called one at a time.
type offering struct {
	v       *Volume
	m       *mounted
	backend Backend
	record  *journal.Part
	gone    chan struct{}
	thaw    func()
}

// giveBackTime bounds the time until delegated directories are given back, while programs go on.
const giveBackTime = 5 * time.Second

// pauseTries are the time limits of the attempts to pause a view. A request that is under way may
// not end in time, if it waits for another one that the pause keeps out. The last attempt has
// nearly all of PauseTime, because hundreds of requests that wait for locks need a second on a busy
// node.
var pauseTries = []time.Duration{handover.PauseTime / 20, handover.PauseTime / 5, handover.PauseTime * 9 / 10}

func (o *offering) pause() ([]byte, []int, error) {
	if err := o.m.view.CanPause(); err != nil {
		return nil, nil, err
	}
	if err := o.giveBackKept(); err != nil {
		return nil, nil, err
	}
	began, err := o.pauseView()
	if err != nil {
		o.m.locks.GoOn()
		return nil, nil, err
	}
	ctx, cancel := context.WithDeadline(context.Background(), began.Add(handover.PauseTime))
	defer cancel()
	err = o.m.locks.Quiet(ctx)
	if err == nil {
		o.thaw, err = o.backend.Freeze(ctx)
	}
	if err == nil {
		var state []byte
		var fds []int
		if state, fds, err = o.export(); err == nil {
			return state, fds, nil
		}
	}
	o.resume()
	return nil, nil, err
}

func (o *offering) giveBackKept() error {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTime)
	defer cancel()
	if err := o.m.locks.GiveBackKept(ctx); err != nil {
		o.m.locks.GoOn()
		return err
	}
	return nil
}

// pauseView pauses the view, and returns the time at which the pause began. Between two attempts
// the view goes on until it has served all requests that have waited.
func (o *offering) pauseView() (began time.Time, err error) {
	for _, lasts := range pauseTries {
		began = time.Now()
		try, cancel := context.WithTimeout(context.Background(), lasts)
		err = o.m.view.Pause(try)
		cancel()
		if !errors.Is(err, fs.ErrBusy) {
			break
		}
	}
	return began, err
}

func (o *offering) export() ([]byte, []int, error) {
	view, fds, holds, tables, err := o.m.view.Export()
	if err != nil {
		return nil, nil, err
	}
	locks, err := o.m.locks.Export(holds, tables)
	if err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	var service []int
	if lender, ok := o.backend.(Lender); ok {
		service = lender.Lend()
	}
	if err := gob.NewEncoder(&b).Encode(snapshot{view, locks, o.m.life.ID, len(service), o.v.takenOver().Count, o.v.takenOver().Deaths}); err != nil {
		return nil, nil, err
	}
	return b.Bytes(), append(append(fds, service...), int(o.m.life.File().Fd())), nil
}

func (o *offering) resume() {
	if err := o.record.Complete(); err != nil {
		o.v.log.Error("if the daemon dies, programs lose the files that they have open in this view", slog.Any("error", err))
	}
	if lender, ok := o.backend.(Lender); ok {
		lender.GoOn()
	}
	if o.thaw != nil {
		o.thaw()
		o.thaw = nil
	}
	_ = o.m.view.Resume() // Wait returns the error too
}

func (o *offering) letGo() {
	if lender, ok := o.backend.(Lender); ok {
		lender.Leave()
	}
	close(o.gone)
	o.record.Void() // the mount is the other daemon's now
	o.m.locks.LetGo()
	o.m.view.LetGo()
}

// accepted is what this daemon has got from the mount's predecessor, until it is used.
type accepted struct {
	snapshot
	view    []int      // descriptors
	service []*os.File // of the lock service
	life    *os.File   // the lifeline, which is closed by who adopts it
}

// predecessor is who has served the mount before: a running daemon, or one that has died.
type predecessor interface {
	// accept returns the state of the mount.
	accept(c *Config, backend Backend, settings map[string]string) (*accepted, error)
	// take makes the mount this process's. After an error it is not.
	take() error
	// who is for the log.
	who() slog.Attr
}

// running is a daemon that hands its mount on.
type running struct{ *handover.Peer }

func (r running) take() error    { return r.Take() }
func (r running) who() slog.Attr { return slog.Int("pid", r.PID) }

func (r running) accept(c *Config, _ Backend, settings map[string]string) (*accepted, error) {
	state, fds, err := r.Ask(c.Version, settings)
	if err != nil {
		return nil, err
	}
	a, last := &accepted{view: fds}, len(fds)-1
	err = gob.NewDecoder(bytes.NewReader(state)).Decode(&a.snapshot)
	switch {
	case err != nil:
		err = fmt.Errorf("the state of the running daemon: %w", err)
	case last < 0 || a.View == nil || a.Locks == nil || a.Service < 0 || a.Service > last:
		err = errors.New("the state of the running daemon is incomplete")
	}
	if err != nil {
		a.close()
		return nil, err
	}
	a.view, a.life = fds[:last-a.Service], os.NewFile(uintptr(fds[last]), "lifeline")
	for _, fd := range fds[last-a.Service : last] {
		a.service = append(a.service, os.NewFile(uintptr(fd), "lock service"))
	}
	return a, nil
}

// close closes what was not used.
func (a *accepted) close() {
	handover.CloseAll(a.view)
	for _, f := range a.service {
		f.Close()
	}
}

// takeOver takes the mount over from who has served it.
func (v *Volume) takeOver(ctx context.Context, c *Config, from predecessor, backend Backend, id uuid.UUID, service lockmgr.Service) (_ *mounted, err error) {
	info, err := c.session()
	if err != nil {
		return nil, err
	}
	next, err := newSuccessor(backend, c.StateDir, id, c.Source, info.BootID, v.log)
	if err != nil {
		return nil, err
	}
	if err := backend.Connect(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	settings := c.settings(id, service)
	a, err := from.accept(c, backend, settings)
	if err != nil {
		return nil, err
	}
	defer a.close()
	life, err := lifeline.Adopt(next.dir, a.Lifeline, a.life)
	if err != nil {
		return nil, fmt.Errorf("lifeline: %w", err)
	}
	defer func() {
		if err != nil {
			life.Leave()
		}
	}()
	info.Lifeline = life.ID
	locks, holds, err := lockmgr.Adopt(ctx, v.manager(c, backend, info), a.Locks)
	if err != nil {
		return nil, err
	}
	fds := a.view
	a.view = nil // they are fs.Adopt's, also if it fails
	adopted, err := fs.Adopt(c.Mountpoint, v.viewConfig(c, locks), a.View, fds, holds)
	if err != nil {
		locks.LetGo()
		return nil, err
	}
	if err := from.take(); err != nil {
		adopted.Discard()
		locks.LetGo()
		return nil, err
	}
	m := &mounted{nil, locks, life}
	taken := takeover{Takeover: metrics.Takeover{Count: a.Taken + 1, Deaths: a.Deaths}}
	if d, ok := from.(*dead); ok {
		taken.Deaths++
		taken.died = d.how
	}
	c.recordMount(m, settings, taken.Takeover)
	// From here on a next process goes on from what this one does.
	if err := adopted.Record(); err != nil {
		v.notRecorded(c, err)
	}
	locks.Begin()
	m.view = adopted.Begin()
	taken.Took, taken.at = time.Since(began), time.Now()
	v.tookOver(c, from, &a.snapshot, taken)
	if lender, ok := backend.(Lender); ok {
		lender.Adopt(a.service)
		a.service = nil
	}
	c.recordService(backend)
	v.setMounted(c.Mountpoint, locks, m.view)
	go func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), StartTimeout)
		defer cancel()
		next.succeed(clean)
	}()
	return m, nil
}

// tookOver reports a takeover.
func (v *Volume) tookOver(c *Config, from predecessor, s *snapshot, now takeover) {
	now.Files, now.Locks, now.Waiting = len(s.View.Handles), len(s.Locks.Locks), len(s.View.Waiting)
	v.mu.Lock()
	v.taken = now
	v.mu.Unlock()
	v.metrics.TakenOver(now.Takeover)
	v.log.Info("took the mount over from the daemon that served it", from.who(), slog.Duration("took", now.Took),
		slog.Int("nodes", len(s.View.Nodes)), slog.Int("open_files", now.Files), slog.Int("locks", now.Locks),
		slog.Int("waiting", now.Waiting), slog.Int("times", now.Count), slog.String("mountpoint", c.Mountpoint), slog.String("version", c.Version))
}

func (v *Volume) takenOver() takeover {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.taken
}

// mountNamespace identifies the process's mount namespace.
var mountNamespace = sync.OnceValue(func() string {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/mnt", &st); err != nil {
		return ""
	}
	return strconv.FormatUint(st.Ino, 10)
})
