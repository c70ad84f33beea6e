package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

// A published mount shows the view of the daemon that lived then. When that view has ended, and the
// daemon has made another, the mount is replaced, in the directories of the kubelet and in the
// containers that have copies of it. No list is kept of what was published: which mounts show which
// view is read from the mount tables. A mount of the kubelet's directories is ours, since only root
// mounts there. Its device number tells its copies in containers, and no other file system has that
// number while a mount of it stands.

const (
	repairEvery   = 5 * time.Second  // beside each change of the mount table
	repairPatient = 30 * time.Second // a repair that takes longer is reported, and goes on
)

// keepRepairing repairs published mounts until ctx ends. Each volume is repaired by itself: a view
// that hangs keeps no other waiting.
func (d *Driver) keepRepairing(ctx context.Context) {
	go d.watchMounts(ctx)
	var repairs sync.WaitGroup
	defer repairs.Wait()
	tick := time.NewTicker(repairEvery)
	defer tick.Stop()
	for {
		if table, err := mounts.List(); err != nil {
			d.log.Warn("published mounts are not repaired", slog.Any("error", err))
		} else {
			for _, v := range d.cfg.Volumes() {
				if len(d.outdated(table, v)) == 0 {
					d.report(v, nil)
					continue
				}
				repairs.Go(func() { d.repair(ctx, v) })
			}
		}
		select {
		case <-d.look:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookNow has keepRepairing look at the mount table.
func (d *Driver) lookNow() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}

// watchMounts tells of changes of the mount table. The kernel wakes poll(2) for them.
func (d *Driver) watchMounts(ctx context.Context) {
	// Not an os.File: the runtime would poll it as well, and who polls first is the only one told.
	table, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		d.log.Warn("changes of the mount table are not seen at once", slog.Any("error", err))
		return
	}
	defer unix.Close(table)
	for ctx.Err() == nil {
		fds := []unix.PollFd{{Fd: int32(table), Events: unix.POLLPRI}}
		n, err := unix.Poll(fds, int(time.Second.Milliseconds()))
		if err != nil && !errors.Is(err, unix.EINTR) {
			d.log.Warn("changes of the mount table are not seen at once", slog.Any("error", err))
			return
		}
		if n > 0 {
			d.lookNow()
		}
	}
}

// repair repairs the mounts of one volume, unless that is under way.
func (d *Driver) repair(ctx context.Context, v config.Volume) {
	ctx, cancel := context.WithTimeout(ctx, repairPatient)
	defer cancel()
	err := d.do(ctx, "repair of "+v.ID(), v.ID(), func() error { return d.repairVolume(v) })
	if status.Code(err) == codes.Aborted {
		return
	}
	d.report(v, err)
	if err == nil {
		d.lookNow() // a change that was seen meanwhile has begun no repair
	}
}

// report logs what keeps a volume from being repaired; each problem once, for as long as it lasts.
func (d *Driver) report(v config.Volume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		delete(d.reported, v.ID())
		return
	}
	if problem := err.Error(); problem != d.reported[v.ID()] {
		d.reported[v.ID()] = problem
		d.log.Warn("published mounts show an old view", slog.String("volume", v.ID()), slog.Any("error", err))
	}
}

// outdated returns the published mounts of former views of the volume; none if there is no view
// now.
func (d *Driver) outdated(table []mounts.Mount, v config.Volume) []mounts.Mount {
	at, err := mounts.Resolve(v.Mountpoint) // the mount table has no symbolic links
	if err != nil {
		return nil
	}
	var view mounts.Mount
	for _, m := range table {
		if m.Point == at && m.FSType == mounts.FSType {
			view = m
		}
	}
	if view.Device == "" {
		return nil
	}
	return topmost(table, func(m mounts.Mount) bool {
		return strings.HasPrefix(m.Point, d.cfg.KubeletDir+"/") && m.FSType == mounts.FSType &&
			m.Source == view.Source && m.Device != view.Device
	})
}

// topmost returns the mounts with a property that are not covered as a whole.
func topmost(table []mounts.Mount, is func(mounts.Mount) bool) []mounts.Mount {
	type place struct {
		parent int
		point  string
	}
	covered := make(map[place]bool, len(table))
	for _, m := range table {
		covered[place{m.Parent, m.Point}] = true
	}
	var found []mounts.Mount
	for _, m := range table {
		if is(m) && !covered[place{m.ID, m.Point}] {
			found = append(found, m)
		}
	}
	return found
}

// nested returns a mount below m that would go with it.
func nested(table []mounts.Mount, m mounts.Mount) (mounts.Mount, bool) {
	i := slices.IndexFunc(table, func(n mounts.Mount) bool { return n.Parent == m.ID })
	if i < 0 {
		return mounts.Mount{}, false
	}
	return table[i], true
}

func (d *Driver) repairVolume(v config.Volume) error {
	view, err := openView(v)
	if err != nil {
		return err
	}
	defer view.close()
	table, err := mounts.List()
	if err != nil {
		return err
	}
	old := d.outdated(table, v)
	devices := make(map[string]bool)
	for _, m := range old {
		pin, err := os.OpenFile(m.Point, unix.O_PATH|unix.O_DIRECTORY, 0) // or its number may be another's
		if err != nil {
			continue // unpublished
		}
		defer pin.Close()
		devices[m.Device] = true
	}
	// Containers first: if the driver dies meanwhile, the kubelet's directories still say which devices
	// are ours. Then again: the kubelet may have started one with an old mount.
	errs := []error{d.repairContainers(view, devices)}
	for _, m := range old {
		if err := d.replace(view, table, m, nil); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, d.repairContainers(view, devices))
	return errors.Join(errs...)
}

// replace puts a mount of the same directory of the view in the place of m, in the namespace of the
// table; nil: our own.
func (d *Driver) replace(view *view, table []mounts.Mount, m mounts.Mount, namespace *os.File) error {
	if n, ok := nested(table, m); ok {
		return fmt.Errorf("%s cannot be replaced, because %s is mounted in it: start its pod anew", m.Point, n.Point)
	}
	dir := strings.TrimPrefix(strings.TrimPrefix(m.Root, view.mount.Root), "/")
	if dir == "" {
		dir = "."
	}
	from, err := view.open(dir)
	if err != nil {
		return fmt.Errorf("%s: %w", m.Point, err)
	}
	defer from.Close()
	tree, err := mounts.Clone(from, m.Attrs())
	if err != nil {
		return err
	}
	defer tree.Close()
	where := "the kubelet's"
	if namespace != nil {
		where = namespace.Name()
	}
	if err := mounts.Replace(tree, m, namespace); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	d.log.Info("mounted the new view in the place of the old one", slog.String("volume", view.mount.Source),
		slog.String("directory", dir), slog.String("mountpoint", m.Point), slog.String("namespace", where))
	return nil
}

// repairContainers replaces the mounts of the devices in all other mount namespaces.
func (d *Driver) repairContainers(view *view, devices map[string]bool) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	seen := map[string]bool{own: true}
	pids, err := processes()
	if err != nil {
		return err
	}
	var errs []error
	for _, pid := range pids {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || seen[ns] { // it has ended
			continue
		}
		seen[ns] = true
		if err := d.repairContainer(view, devices, pid); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// processes returns the ids of all processes. A container's first, which has its root directory, comes
// before those that it has started.
func processes() ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

func (d *Driver) repairContainer(view *view, devices map[string]bool, pid int) error {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	if err != nil {
		return nil // it has ended
	}
	defer ns.Close()
	table, err := mounts.ListOf(pid)
	if err != nil {
		return nil
	}
	var errs []error
	for _, m := range topmost(table, func(m mounts.Mount) bool { return m.FSType == mounts.FSType && devices[m.Device] }) {
		if strings.HasPrefix(m.Point, d.cfg.KubeletDir+"/") {
			continue // the machine's own namespace and its followers: that mount reaches them
		}
		if err := d.replace(view, table, m, ns); err != nil && stands(pid, m) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// stands reports whether a mount is still there: its container may have unmounted it, or have ended.
func stands(pid int, m mounts.Mount) bool {
	table, err := mounts.ListOf(pid)
	return err == nil && slices.ContainsFunc(table, func(n mounts.Mount) bool { return n.ID == m.ID })
}
