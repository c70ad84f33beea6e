package metrics

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// Volume has the metrics of one volume.
type Volume struct {
	told   []prometheus.Collector // updated by Observe
	gauges gauges

	requests     *prometheus.CounterVec // mode, result
	acquire      prometheus.Histogram
	wait         prometheus.Histogram
	held         prometheus.Histogram
	recalls      *prometheus.CounterVec // idle
	delegations  prometheus.Counter
	dirRecalls   *prometheus.CounterVec // open
	advisory     *prometheus.CounterVec // result
	advisoryWait prometheus.Histogram
	losses       *prometheus.CounterVec // cause
	renewals     *prometheus.CounterVec // result
	renewal      prometheus.Histogram
	suspensions  prometheus.Counter
	sessionsLost *prometheus.CounterVec // cause
	takeovers    prometheus.Counter
	deaths       prometheus.Counter
	takeover     prometheus.Gauge
	carried      *prometheus.GaugeVec // what

	mu    sync.Mutex
	locks func() lockmgr.Stats // GUARDED_BY(mu); nil while it is not mounted
	view  func() fs.Stats      // GUARDED_BY(mu); as locks
	below func() Health        // GUARDED_BY(mu); as locks
}

// Health describes the volume's mount below a view.
type Health struct {
	Available   bool // the view reaches it
	RulesBroken int  // how many rules of docs/SEMANTICS.md it breaks
	Accepted    bool // with --accept-volume
}

// Buckets for work in memory, on a disk, over a network, and by people.
var (
	answerBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
	waitBuckets   = []float64{.001, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800}
)

func newVolume(namespace, name string) *Volume {
	labels := prometheus.Labels{"namespace": namespace, "name": name}
	v := &Volume{gauges: newGauges(labels)}
	counter := func(name, help string) prometheus.Counter {
		return add(v, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}))
	}
	counters := func(name, help string, by ...string) *prometheus.CounterVec {
		return add(v, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, by))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return add(v, prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, ConstLabels: labels, Buckets: buckets}))
	}
	v.requests = counters("lockfs_lock_requests_total", "Requests for locks that have ended, by result.", "mode", "result")
	v.acquire = histogram("lockfs_lock_acquire_seconds", "Time from a request for locks to the grant by the lock service, including the wait for other owners.", answerBuckets)
	v.wait = histogram("lockfs_lock_wait_seconds", "How long requests that met another owner waited, whatever their result.", waitBuckets)
	v.held = histogram("lockfs_lock_held_seconds", "Time from the grant of a lock to its release.", waitBuckets)
	v.recalls = counters("lockfs_lock_recalls_total", "Recalls by other mounts: of locks that may be kept, and of files whose flock and fcntl locks this mount managed alone.", "idle")
	v.delegations = counter("lockfs_directory_delegations_total", "Directories that were delegated to this mount.")
	v.dirRecalls = counters("lockfs_directory_recalls_total", "Delegated directories that this mount gave up because another mount wanted something in them.", "open")
	v.advisory = counters("lockfs_advisory_requests_total", "Requests for locks of flock and fcntl that have ended, by result.", "result")
	v.advisoryWait = histogram("lockfs_advisory_wait_seconds", "How long requests of flock and fcntl that met another owner waited, whatever their result.", waitBuckets)
	v.losses = counters("lockfs_lock_losses_total", "Locks that were lost while files were open under them.", "cause")
	v.renewals = counters("lockfs_session_renewals_total", "Attempts to renew a session of the lock service.", "result")
	v.renewal = histogram("lockfs_session_renewal_seconds", "Duration of the attempts to renew a session.", answerBuckets)
	v.suspensions = counter("lockfs_session_suspensions_total", "How often writes were suspended because no renewal was answered in time.")
	v.sessionsLost = counters("lockfs_session_losses_total", "Sessions that were lost, with all their locks.", "cause")

	v.takeovers = counter("lockfs_takeovers_total", "How often a daemon has taken the view over from another one since it was mounted.")
	v.deaths = counter("lockfs_takeovers_after_death_total", "How often the daemon from which the view was taken over had died.")
	v.takeover = add(v, prometheus.NewGauge(prometheus.GaugeOpts{Name: "lockfs_takeover_seconds", Help: "How long this daemon took to take the view over, 0 if it has mounted the view itself.", ConstLabels: labels}))
	v.carried = add(v, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "lockfs_takeover_carried", Help: "What this daemon took over.", ConstLabels: labels}, []string{"what"}))
	v.carry(Takeover{})

	// A missing series would be unknown to alerts; these start at 0.
	for _, cause := range []string{causeGone, causeUnanswered} {
		v.losses.WithLabelValues(cause)
		v.sessionsLost.WithLabelValues(cause)
	}
	v.losses.WithLabelValues(causeBroken)
	v.losses.WithLabelValues(causeDeleted)
	v.losses.WithLabelValues(causeVolume)
	v.advisory.WithLabelValues(requestUnavailable)
	for _, result := range []string{"ok", "failed"} {
		v.renewals.WithLabelValues(result)
	}
	for _, mode := range []lockmgr.Mode{lockmgr.Exclusive, lockmgr.Shared} {
		v.requests.WithLabelValues(modeName(mode), requestUnavailable)
	}
	return v
}

func add[C prometheus.Collector](v *Volume, c C) C {
	v.told = append(v.told, c)
	return c
}

// Observe counts an event of the Manager.
func (v *Volume) Observe(e lockmgr.Event) {
	if v == nil {
		return
	}
	switch e := e.(type) {
	case lockmgr.RequestEnded:
		v.requests.WithLabelValues(modeName(e.Mode), requestResult(e)).Inc()
		if e.Err == nil && !e.Joined && !e.Kept {
			v.acquire.Observe(e.Took.Seconds())
		}
		if e.Contended {
			v.wait.Observe(e.Waited.Seconds())
		}
	case lockmgr.AdvisoryEnded:
		v.advisory.WithLabelValues(requestResult(lockmgr.RequestEnded{Err: e.Err})).Inc()
		if e.Contended {
			v.advisoryWait.Observe(e.Waited.Seconds())
		}
	case lockmgr.LockReleased:
		v.held.Observe(e.Held.Seconds())
	case lockmgr.LockRecalled:
		v.recalls.WithLabelValues(strconv.FormatBool(e.Idle)).Inc()
	case lockmgr.DirectoryDelegated:
		v.delegations.Inc()
	case lockmgr.DirectoryRecalled:
		v.dirRecalls.WithLabelValues(strconv.FormatBool(e.Open > 0)).Inc()
	case lockmgr.LockLost:
		v.losses.WithLabelValues(lossCause(e.Cause)).Inc()
	case lockmgr.SessionRenewed:
		v.renewals.WithLabelValues(renewalResult(e.Err)).Inc()
		v.renewal.Observe(e.Took.Seconds())
	case lockmgr.SessionChanged:
		switch {
		case e.State == renew.Suspended:
			v.suspensions.Inc()
		case e.State == renew.Lost && !closed(e.Cause):
			v.sessionsLost.WithLabelValues(lossCause(e.Cause)).Inc()
		}
	}
}

// Mounted sets the sources of a mounted view's metrics; nils: it is not mounted.
func (v *Volume) Mounted(locks func() lockmgr.Stats, view func() fs.Stats, below func() Health) {
	if v == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.locks, v.view, v.below = locks, view, below
}

// Takeover is a view's from one daemon to another.
type Takeover struct {
	Count                 int // with those before
	Deaths                int // of Count, those from a daemon that had died
	Took                  time.Duration
	Files, Locks, Waiting int
}

// TakenOver counts a takeover by this daemon.
func (v *Volume) TakenOver(t Takeover) {
	if v == nil {
		return
	}
	v.takeovers.Add(float64(t.Count))
	v.deaths.Add(float64(t.Deaths))
	v.takeover.Set(t.Took.Seconds())
	v.carry(t)
}

func (v *Volume) carry(t Takeover) {
	for what, n := range map[string]int{"open_files": t.Files, "locks": t.Locks, "waiting": t.Waiting} {
		v.carried.WithLabelValues(what).Set(float64(n))
	}
}

// Describe implements prometheus.Collector.
func (v *Volume) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range v.told {
		c.Describe(ch)
	}
	v.gauges.describe(ch)
}

// Collect implements prometheus.Collector.
func (v *Volume) Collect(ch chan<- prometheus.Metric) {
	for _, c := range v.told {
		c.Collect(ch)
	}
	v.mu.Lock()
	locks, view, below := v.locks, v.view, v.below
	v.mu.Unlock()
	if locks == nil || view == nil || below == nil {
		v.gauges.unmounted(ch)
		return
	}
	v.gauges.mounted(ch, locks(), view(), below())
}
