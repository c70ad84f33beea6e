package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/supervise"
	"github.com/lockfs/lockfs/lockmgr"
)

// A daemon with a supervisor leaves its mounts to the next one when it dies: in records, and in the
// descriptors that its shadow keeps. The next one takes them over as from a running daemon, except
// that the state was recorded piece by piece (docs/adr/0070).

// The kinds of the package's records.
const (
	recordMount = lockmgr.FirstKind + 16 + iota
	recordService
)

// mountRecord is all of a mount that is in the records of neither its view nor its locks.
type mountRecord struct {
	_          struct{} `cbor:",toarray"`
	Lifeline   string
	LifelineFD int
	Settings   map[string]string
	Taken      int
	Deaths     int
}

// part is the name of the mount's records.
func (c *Config) part() (string, error) { return mounts.Resolve(c.Mountpoint) }

// leftByDead returns the mount that a dead process has left; nil: there is none.
func (v *Volume) leftByDead(c *Config) *dead {
	if c.Worker == nil {
		return nil
	}
	name, err := c.part()
	if err != nil {
		return nil // there is no such directory yet
	}
	left, err := c.Worker.Former(name)
	if err != nil {
		v.log.Error("what a daemon that died has left cannot be read", slog.Any("error", err))
	}
	if left == nil {
		return nil
	}
	c.Mountpoint = name
	return &dead{Former: left, how: c.Worker.LastDeath}
}

// ForsakeOthers lets go of views that a dead process has left, if none of specs is at their
// mountpoint.
func ForsakeOthers(w *supervise.Worker, specs []Spec) {
	wanted := make(map[string]bool)
	for _, s := range specs {
		if name, err := s.part(); err == nil {
			wanted[name] = true
		}
	}
	w.Only(func(part string) bool { return wanted[part] })
}

// beginRecord prepares the mount's records, if this process has a supervisor.
func (c *Config) beginRecord(backend Backend, log *slog.Logger) {
	c.record = nil
	defer func() { backend.Record(c.record) }()
	if c.Worker == nil {
		return
	}
	name, err := c.part()
	if err == nil {
		err = c.Worker.Check()
	}
	var j *journal.Journal
	if err == nil {
		j, err = c.Worker.Journal()
	}
	if err != nil {
		log.Warn("if the daemon dies, programs lose the files that they have open in this view", slog.Any("error", err))
		return
	}
	j.WhenFull(func() {
		log.Error("if the daemon dies, programs lose the files that they have open in this view; restart it when that disturbs them least", slog.Any("error", journal.ErrFull))
	})
	c.record = j.Part(name)
}

func (c *Config) deaths() int {
	if c.Worker == nil {
		return 0
	}
	return c.Worker.InARow
}

// recordMount is called before the view is recorded: with the record of the view, that of the mount
// is complete.
func (c *Config) recordMount(m *mounted, settings map[string]string, taken metrics.Takeover) {
	if c.record.Keeps() {
		settings = maps.Clone(settings)
		settings[namespaceSetting] = mountNamespace() // something may be mounted below SOURCE later
		c.record.Put(recordMount, 0, mountRecord{Lifeline: m.life.ID, LifelineFD: int(m.life.File().Fd()), Settings: settings, Taken: taken.Count, Deaths: taken.Deaths})
	}
}

// recordService records the descriptors of a lock service that ends with this process.
func (c *Config) recordService(backend Backend) {
	if lender, ok := backend.(Lender); ok && c.record.Keeps() {
		lender.Tell(func(fds []int) { c.record.Put(recordService, 0, fds) })
	}
}

func (v *Volume) notRecorded(c *Config, err error) {
	v.log.Error("if the daemon dies, programs lose the files that they have open in this view", slog.Any("error", err))
	c.record.Void()
}

// giveUp lets go of a mount that cannot be taken over: its programs get errors.
func (v *Volume) giveUp(c *Config, d *dead, err error) {
	v.log.Error("the view of a daemon that died cannot be taken over; its programs get errors, and it is mounted anew", slog.Any("error", err))
	c.record.Void()
	if err := fs.Forsake(c.Mountpoint, d.Records, d.Get, v.log); err != nil {
		v.log.Warn("cannot unmount the view of a daemon that died", slog.Any("error", err))
	}
	c.Worker.Forget(c.Mountpoint)
	c.taking = false
}

// dead is a daemon that has died.
type dead struct {
	*supervise.Former
	how string
}

func (d *dead) take() error    { return nil }
func (d *dead) who() slog.Attr { return slog.String("died", d.how) }

func (d *dead) accept(c *Config, backend Backend, settings map[string]string) (_ *accepted, err error) {
	m, err := journal.One[mountRecord](d.Records, recordMount)
	if err != nil {
		return nil, err
	}
	if _, matters := settings[namespaceSetting]; !matters {
		delete(m.Settings, namespaceSetting)
	}
	if err := handover.Compare(m.Settings, settings); err != nil {
		return nil, err
	}
	view, err := fs.Recovered(d.Records)
	if err != nil {
		return nil, err
	}
	locks, err := lockmgr.Recovered(d.Records, view.Holds, view.Tables)
	if err != nil {
		return nil, err
	}
	if err := backend.Recover(d.Records); err != nil {
		return nil, err
	}
	a := &accepted{snapshot: snapshot{View: view.State, Locks: locks, Lifeline: m.Lifeline, Taken: m.Taken, Deaths: m.Deaths}}
	defer func() {
		if err != nil {
			a.close()
		}
	}()
	for _, number := range view.FDs {
		fd, err := d.Get(number)
		if err != nil {
			return nil, err
		}
		a.view = append(a.view, fd)
	}
	life, err := d.Get(m.LifelineFD)
	if err != nil {
		return nil, err
	}
	a.life = os.NewFile(uintptr(life), "lifeline")
	service, err := journal.All[[]int](d.Records, recordService)
	if err != nil {
		return nil, err
	}
	for _, number := range service[0] {
		fd, err := d.Get(number)
		if err != nil {
			return nil, err
		}
		a.service = append(a.service, os.NewFile(uintptr(fd), "lock service"))
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			return nil, fmt.Errorf("descriptor %d of the former worker is no pipe (%w)", number, err)
		}
	}
	return a, nil
}

// cannot reports whether another try of a takeover would fail with the same error.
func cannot(err error) bool {
	return err != nil && !errors.Is(err, lockmgr.ErrUnavailable) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded)
}
