package serve

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/netvolume"
)

// health is what is known of the volume's mount below a view.
type health struct {
	accepted bool // constant; broken rules are accepted
	log      *slog.Logger

	mu       sync.Mutex
	findings []netvolume.Finding // GUARDED_BY(mu)
	gone     error               // GUARDED_BY(mu); why the view does not reach the volume; nil while it does
}

func (h *health) found(findings []netvolume.Finding) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range findings {
		if slices.ContainsFunc(h.findings, func(o netvolume.Finding) bool { return o.String() == f.String() }) {
			continue
		}
		finding := slog.String("finding", f.String())
		switch {
		case !f.Breaks():
			h.log.Warn("the volume may break what lockfs promises", finding)
		case h.accepted:
			h.log.Warn("the volume breaks what lockfs promises, and was accepted", finding)
		default:
			h.log.Warn("the volume's options have changed, and it breaks what lockfs promises", finding)
		}
	}
	for _, o := range h.findings {
		if !slices.ContainsFunc(findings, func(f netvolume.Finding) bool { return o.String() == f.String() }) {
			h.log.Info("the volume no longer breaks what lockfs promises", slog.String("finding", o.String()))
		}
	}
	h.findings = findings
}

func (h *health) notes() (notes []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range netvolume.Broken(h.findings) {
		note := f.String()
		if h.accepted {
			note += " (accepted)"
		}
		notes = append(notes, note)
	}
	return notes
}

func (h *health) state() metrics.Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	rules := make(map[int]bool)
	for _, f := range h.findings {
		for _, r := range f.Rules {
			rules[r] = true
		}
	}
	return metrics.Health{Available: h.gone == nil, RulesBroken: len(rules), Accepted: h.accepted}
}

func (h *health) reached(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && (h.gone == nil || h.gone.Error() != err.Error()):
		h.log.Error("the volume is out of reach; its programs get errors until it is mounted again", slog.Any("error", err))
	case err == nil && h.gone != nil:
		h.log.Info("the volume is within reach again")
	}
	h.gone = err
}

func (h *health) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gone
}
