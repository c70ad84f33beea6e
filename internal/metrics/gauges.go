package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/lockmgr"
)

type gauges struct {
	isMounted, available, rulesBroken, locksHeld, locksKept, dirs, waiting, advisoryHeld, advisoryWaiting, sessions, fsRequests, inodes, inodesLimit, openFiles, fsUnderWay, fsWaiting *prometheus.Desc
}

func newGauges(labels prometheus.Labels) gauges {
	desc := func(name, help string, by ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, by, labels)
	}
	return gauges{
		isMounted:       desc("lockfs_volume_mounted", "1 while the volume's view is mounted, else 0."),
		available:       desc("lockfs_volume_available", "1 while the view reaches the volume, else 0."),
		rulesBroken:     desc("lockfs_volume_rules_broken", "Rules of docs/SEMANTICS.md that the volume's mount options break.", "accepted"),
		locksHeld:       desc("lockfs_locks_held", "Locks that this mount has."),
		locksKept:       desc("lockfs_locks_kept", "Locks that this mount keeps though nobody has their files open."),
		dirs:            desc("lockfs_directories_delegated", "Directories that are delegated to this mount."),
		waiting:         desc("lockfs_lock_requests_waiting", "Requests that wait for another owner's lock."),
		advisoryHeld:    desc("lockfs_advisory_locks_held", "Locks of flock and fcntl that programs of this mount have."),
		advisoryWaiting: desc("lockfs_advisory_requests_waiting", "Requests of flock and fcntl that wait for another owner's lock."),
		sessions:        desc("lockfs_sessions", "Sessions of the lock service.", "state"),
		fsRequests:      desc("lockfs_fs_requests_total", "Requests of the kernel that were answered.", "request", "result"),
		inodes:          desc("lockfs_fs_inodes", "Inodes that the kernel knows. Each takes a file descriptor."),
		inodesLimit:     desc("lockfs_fs_inodes_limit", "Number of inodes above which the kernel is asked to forget some."),
		openFiles:       desc("lockfs_fs_open_files", "Files that are open through the view."),
		fsUnderWay:      desc("lockfs_fs_requests_under_way", "Requests of the kernel that are under way in the volume."),
		fsWaiting:       desc("lockfs_fs_requests_waiting", "Requests of the kernel that wait because too many others are under way in the volume."),
	}
}

func (g *gauges) describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{g.isMounted, g.available, g.rulesBroken, g.locksHeld, g.locksKept, g.dirs, g.waiting, g.advisoryHeld, g.advisoryWaiting, g.sessions, g.fsRequests, g.inodes, g.inodesLimit, g.openFiles, g.fsUnderWay, g.fsWaiting} {
		ch <- d
	}
}

func (g *gauges) unmounted(ch chan<- prometheus.Metric) {
	ch <- prometheus.MustNewConstMetric(g.isMounted, prometheus.GaugeValue, 0)
}

func (g *gauges) mounted(ch chan<- prometheus.Metric, locks lockmgr.Stats, view fs.Stats, below Health) {
	gauge := func(d *prometheus.Desc, value int, by ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), by...)
	}
	gauge(g.isMounted, 1)
	available := 0
	if below.Available {
		available = 1
	}
	gauge(g.available, available)
	gauge(g.rulesBroken, below.RulesBroken, strconv.FormatBool(below.Accepted))
	gauge(g.locksHeld, locks.Held)
	gauge(g.locksKept, locks.Kept)
	gauge(g.dirs, locks.Dirs)
	gauge(g.waiting, locks.Waiting)
	gauge(g.advisoryHeld, locks.AdvisoryHeld)
	gauge(g.advisoryWaiting, locks.AdvisoryWaiting)
	for state, n := range locks.Sessions {
		gauge(g.sessions, n, state.String())
	}
	for _, r := range view.Requests {
		ch <- prometheus.MustNewConstMetric(g.fsRequests, prometheus.CounterValue, float64(r.Count), r.Request, r.Result)
	}
	gauge(g.inodes, view.Inodes)
	gauge(g.inodesLimit, view.Limit)
	gauge(g.openFiles, view.Open)
	gauge(g.fsUnderWay, view.UnderWay)
	gauge(g.fsWaiting, view.Waiting)
}
