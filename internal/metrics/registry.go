package metrics

import (
	"log/slog"
	"net/http"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Registry has the metrics of one daemon.
type Registry struct {
	reg *prometheus.Registry

	mu      sync.Mutex
	volumes map[volumeName]*Volume // GUARDED_BY(mu)
}

type volumeName struct{ namespace, name string }

// New returns a Registry with the metrics of the process itself.
func New(version string) *Registry {
	r := &Registry{reg: prometheus.NewRegistry(), volumes: make(map[volumeName]*Volume)}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "lockfs_build_info", Help: "1, with the version of the program.",
		ConstLabels: prometheus.Labels{"version": version},
	})
	build.Set(1)
	r.reg.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// Configuration adds the metric of a refused configuration: rejected returns the reason
// while there is one.
func (r *Registry) Configuration(rejected func() error) {
	if r == nil {
		return
	}
	r.reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockfs_config_rejected", Help: "1 while the daemon's file has a mistake and what it said before is served, else 0.",
	}, func() float64 {
		if rejected() != nil {
			return 1
		}
		return 0
	}))
}

// Volume returns the metrics of a volume, which are served from then on. A nil Registry
// returns nil, a Volume that counts nothing.
func (r *Registry) Volume(namespace, name string) *Volume {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := volumeName{namespace, name}
	v := r.volumes[k]
	if v == nil {
		v = newVolume(namespace, name)
		r.volumes[k] = v
		r.reg.MustRegister(v)
	}
	return v
}

// Forget removes the metrics of a volume that is no longer served.
func (r *Registry) Forget(namespace, name string) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	k := volumeName{namespace, name}
	if v := r.volumes[k]; v != nil {
		r.reg.Unregister(v)
		delete(r.volumes, k)
	}
}

// Handler serves /metrics.
func (r *Registry) Handler(log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(r.reg, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)})
}
