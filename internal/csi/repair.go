package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
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
//
// A repair can fail for a container, and the view can end again during a repair. Then the kubelet's
// directories may no longer tell of each view that a container shows. So the views that were given out
// are remembered until a repair has succeeded.

const (
	repairEvery   = 5 * time.Second  // beside each change of the mount table
	repairAgain   = 30 * time.Second // after a repair that has failed for a container
	repairPatient = 30 * time.Second // a repair that takes longer is reported, and goes on
	waitContainer = 5 * time.Second  // for the mounts of one container
	atOnce        = 64               // containers that are waited for
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
			volumes := d.cfg.Volumes()
			d.forgetOthers(volumes)
			for _, v := range volumes {
				left, due := d.unrepaired(v)
				view, ok := viewOf(table, v)
				if ok && (due || len(d.outdated(table, view)) > 0) {
					repairs.Go(func() { d.repair(ctx, v) })
				} else if !left {
					d.report(v, nil)
				}
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

// repairOf is the subject of a volume's repair.
func repairOf(id string) string { return "repair of " + id }

// repair repairs the mounts of one volume, unless that is under way.
func (d *Driver) repair(ctx context.Context, v config.Volume) {
	ctx, cancel := context.WithTimeout(ctx, repairPatient)
	defer cancel()
	err := d.do(ctx, repairOf(v.ID()), v.ID(), func() error { return d.repairVolume(v) })
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

// given are the views of a volume that containers may show.
type given struct {
	roots map[string]*os.File // mounts by device; an open one keeps the number from being another's
	again time.Time           // no repair is due before, unless the kubelet's directories show a former view
}

func (g *given) close() {
	for _, root := range g.roots {
		root.Close()
	}
}

// give remembers a view, by an open mount of it, until a repair of the volume has succeeded.
func (d *Driver) give(v config.Volume, device string, root *os.File) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.given[v.ID()]
	if g == nil {
		g = &given{roots: make(map[string]*os.File)}
		d.given[v.ID()] = g
	}
	if g.roots[device] != nil {
		root.Close()
		return
	}
	g.roots[device] = root
}

// formers returns the devices of the former views that are remembered.
func (d *Driver) formers(v config.Volume, view mounts.Mount) map[string]bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	devices := make(map[string]bool)
	for device := range d.given[v.ID()].roots {
		if device != view.Device {
			devices[device] = true
		}
	}
	return devices
}

// repaired ends a repair.
func (d *Driver) repaired(v config.Volume, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.given[v.ID()]
	if err != nil {
		g.again = time.Now().Add(repairAgain)
		return
	}
	g.close()
	delete(d.given, v.ID())
}

// unrepaired reports whether a container may show a former view after the last repair, and whether the
// next one is due.
func (d *Driver) unrepaired(v config.Volume) (left, due bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g := d.given[v.ID()]
	return g != nil, g != nil && !time.Now().Before(g.again)
}

// forgetOthers forgets the views of volumes that this node has no more. A repair that is still under way
// needs them.
func (d *Driver) forgetOthers(volumes []config.Volume) {
	present := make(map[string]bool, len(volumes))
	for _, v := range volumes {
		present[v.ID()] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for id := range d.reported {
		if !present[id] {
			delete(d.reported, id)
		}
	}
	for id, g := range d.given {
		if !present[id] && !d.busy[repairOf(id)] {
			g.close()
			delete(d.given, id)
		}
	}
}

// viewOf returns the mount of the volume's view; ok is false if there is none now.
func viewOf(table []mounts.Mount, v config.Volume) (view mounts.Mount, ok bool) {
	at, err := mounts.Resolve(v.Mountpoint) // the mount table has no symbolic links
	if err != nil {
		return view, false
	}
	for _, m := range table {
		if m.Point == at && m.FSType == mounts.FSType {
			view, ok = m, true
		}
	}
	return view, ok
}

// outdated returns the published mounts of former views of the volume.
func (d *Driver) outdated(table []mounts.Mount, view mounts.Mount) []mounts.Mount {
	return topmost(table, func(m mounts.Mount) bool {
		return strings.HasPrefix(m.Point, d.cfg.KubeletDir+"/") && m.FSType == mounts.FSType &&
			m.Source == view.Source && m.Device != view.Device
	})
}

// topmost returns the mounts with a property that their paths lead to: they are not covered, nor is a
// directory on the way to them.
func topmost(table []mounts.Mount, is func(mounts.Mount) bool) []mounts.Mount {
	type place struct {
		parent int
		point  string
	}
	covered := make(map[place]bool, len(table))
	byID := make(map[int]mounts.Mount, len(table))
	for _, m := range table {
		byID[m.ID] = m
		if m.Parent != m.ID { // as the kernel's first is
			covered[place{m.Parent, m.Point}] = true
		}
	}
	hidden := func(m mounts.Mount) bool {
		for range table { // no more are mounted on each other, even if the table changed as it was read
			on, ok := byID[m.Parent]
			if !ok {
				break
			}
			for dir := m.Point; dir != on.Point && dir != "/"; {
				if dir = path.Dir(dir); covered[place{on.ID, dir}] {
					return true
				}
			}
			m = on
		}
		return false
	}
	var found []mounts.Mount
	for _, m := range table {
		if is(m) && !covered[place{m.ID, m.Point}] && !hidden(m) {
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
	root, err := mounts.Clone(view.root, 0) // not the daemon's mount: that would be busy when it ends
	if err != nil {
		return err
	}
	d.give(v, view.mount.Device, root)
	err = d.repairFrom(v, view, table)
	d.repaired(v, err)
	return err
}

func (d *Driver) repairFrom(v config.Volume, view *view, table []mounts.Mount) error {
	var errs []error
	var old []mounts.Mount
	for _, m := range d.outdated(table, view.mount) {
		root, err := os.OpenFile(m.Point, unix.O_PATH|unix.O_DIRECTORY, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // unpublished
		} else if err != nil {
			errs = append(errs, err) // the mount stays, and tells of its view the next time
			continue
		}
		d.give(v, m.Device, root)
		old = append(old, m)
	}
	// Containers first: if the driver dies meanwhile, the kubelet's directories still say which devices
	// are ours. The kubelet's are replaced even if a container's cannot be, or hangs: other containers of
	// the pod must be able to start. Then the containers again: those that were not repaired, and those
	// that the kubelet has started with an old mount.
	devices := d.formers(v, view.mount)
	first, cancel := context.WithTimeout(context.Background(), d.waitContainer)
	_ = d.repairContainers(first, view, devices)
	cancel()
	for _, m := range old {
		if err := d.replace(view, table, m); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, d.repairContainers(context.Background(), view, devices))...)
}

// replacement is a mount of the same directory of the view as another shows, for that one's place.
type replacement struct {
	tree *os.File
	dir  string // of the view
	old  mounts.Mount
}

// replacement makes one for a mount of the table.
func (v *view) replacement(table []mounts.Mount, old mounts.Mount) (replacement, error) {
	dir := strings.TrimPrefix(strings.TrimPrefix(old.Root, v.mount.Root), "/")
	if dir == "" {
		dir = "."
	}
	from, err := v.open(dir)
	if err != nil {
		return replacement{}, fmt.Errorf("%s: %w", old.Point, err)
	}
	defer from.Close()
	return replacementOf(from, dir, table, old)
}

// replacementOf makes one of an open directory of the view.
func replacementOf(from *os.File, dir string, table []mounts.Mount, old mounts.Mount) (replacement, error) {
	if n, ok := nested(table, old); ok {
		return replacement{}, fmt.Errorf("%s cannot be replaced, because %s is mounted in it: start its pod anew", old.Point, n.Point)
	}
	tree, err := mounts.Clone(from, old.Attrs())
	return replacement{tree, dir, old}, err
}

// replace has a mount of the view in the place of one of the kubelet's.
func (d *Driver) replace(view *view, table []mounts.Mount, old mounts.Mount) error {
	r, err := view.replacement(table, old)
	if err != nil {
		return err
	}
	defer r.tree.Close()
	return d.put(r, nil)
}

// put puts a mount in the place of another, in a namespace; nil: our own.
func (d *Driver) put(r replacement, namespace *os.File) error {
	where := "the kubelet's"
	if namespace != nil {
		where = namespace.Name()
	}
	if err := mounts.Replace(r.tree, r.old, namespace); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	d.log.Info("mounted the new view in the place of the old one", slog.String("volume", r.old.Source),
		slog.String("directory", r.dir), slog.String("mountpoint", r.old.Point), slog.String("namespace", where))
	return nil
}

// repairContainers replaces the mounts of the devices in all other mount namespaces. It fails if that
// could not be done, or takes long. After ctx it begins with no other namespace, and waits for none.
func (d *Driver) repairContainers(ctx context.Context, view *view, devices map[string]bool) error {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	seen := map[string]bool{own: true}
	pids, err := processes()
	if err != nil {
		return err
	}
	var puts sync.WaitGroup
	room := make(chan struct{}, d.atOnce)
	errs := make([]error, len(pids)) // in their order: what is the same is reported once
	for i, pid := range pids {
		name, err := os.Readlink(namespaceOf(pid))
		if hasEnded(err) || errors.Is(err, unix.EACCES) || err == nil && seen[name] { // EACCES: root may not look at it, so it is no container
			continue
		}
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		put := func() error { return nil }
		if err == nil {
			name, put, err = d.prepareContainer(ctx, view, devices, pid, name)
			seen[name] = true
		}
		puts.Go(func() {
			if err := errors.Join(err, put()); err != nil {
				errs[i] = fmt.Errorf("process %d: %w", pid, err)
			}
			<-room
		})
	}
	puts.Wait()
	return errors.Join(errs...)
}

// namespaceOf is the path of a process's mount namespace.
func namespaceOf(pid int) string { return fmt.Sprintf("/proc/%d/ns/mnt", pid) }

// hasEnded reports whether an error of /proc/PID says that the process has ended.
func hasEnded(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) // mountinfo's
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

// prepareContainer looks for mounts of the devices in the mount namespace of a process, which had that
// name. It returns what puts others in their places, and the name of the namespace that it has seen: none
// if the process has ended, since another one may be in the same.
func (d *Driver) prepareContainer(ctx context.Context, view *view, devices map[string]bool, pid int, name string) (seen string, put func() error, err error) {
	isOld := func(m mounts.Mount) bool {
		return m.FSType == mounts.FSType && m.Source == view.mount.Source && devices[m.Device] &&
			!strings.HasPrefix(m.Point, d.cfg.KubeletDir+"/") // the machine's own namespace and its followers: that mount reaches them
	}
	nothing := func() error { return nil }
	table, err := mounts.ListOf(pid)
	if hasEnded(err) {
		return "", nothing, nil
	} else if err != nil {
		return "", nothing, err
	}
	if !slices.ContainsFunc(table, isOld) {
		if now, _ := os.Readlink(namespaceOf(pid)); now != name {
			return "", nothing, nil // the table may be another's
		}
		return name, nothing, nil
	}
	ns, err := openNamespace(pid)
	if hasEnded(err) {
		return "", nothing, nil
	} else if err != nil {
		return "", nothing, err
	}
	if table, err = mounts.ListIn(ns.file); err != nil {
		ns.close()
		return "", nothing, err
	}
	var ready []replacement
	var errs []error
	for _, m := range topmost(table, isOld) {
		if r, err := view.replacement(table, m); err == nil {
			ready = append(ready, r)
		} else if ns.has(m) {
			errs = append(errs, err)
		}
	}
	return ns.name, func() error { return d.putIn(ctx, ns, ready) }, errors.Join(errs...)
}

// namespace is an open mount namespace. The process that it was found by may end at any time, and its
// id be another's then. Ids of mounts are used again as well, so they are compared only in here.
type namespace struct {
	file *os.File
	name string
}

func openNamespace(pid int) (*namespace, error) {
	f, err := os.Open(namespaceOf(pid))
	if err != nil {
		return nil, err
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd())) // the process may be in another by now
	if err != nil {
		f.Close()
		return nil, err
	}
	return &namespace{f, name}, nil
}

func (n *namespace) close() { n.file.Close() }

// has reports whether a mount may still be there: the container may have unmounted it.
func (n *namespace) has(m mounts.Mount) bool {
	table, err := mounts.ListIn(n.file)
	return err != nil || slices.ContainsFunc(table, func(other mounts.Mount) bool { return other.ID == m.ID })
}

// putIn puts mounts in the places of others in a namespace, and closes all of them. The paths can lead
// through a file system that hangs: then it fails, and fails at once until that has ended.
func (d *Driver) putIn(ctx context.Context, ns *namespace, all []replacement) error {
	release := func() {
		for _, r := range all {
			r.tree.Close()
		}
		ns.close()
	}
	if len(all) == 0 {
		release()
		return nil
	}
	put := func() error {
		defer release()
		var errs []error
		for _, r := range all {
			if err := d.put(r, ns.file); err != nil && ns.has(r.old) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	ctx, cancel := context.WithTimeout(ctx, d.waitContainer)
	defer cancel()
	err := d.do(ctx, "mounts of "+all[0].old.Source+" in "+ns.name, "", put)
	if status.Code(err) == codes.Aborted { // it has not begun
		release()
	}
	return err
}
