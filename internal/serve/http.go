package serve

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lockfs/lockfs/internal/status"
)

// readyTimeout bounds the answer of each view to /readyz.
const readyTimeout = 2 * time.Second

// Check is one thing that /readyz looks at.
type Check struct {
	Name string
	// Ready returns what is wrong, by when ctx ends.
	Ready func(ctx context.Context) error
	// View is what there is to say of it, but for its State; nil: nothing.
	View func() status.View
	// Notes are what people should know of it, though it is ready; nil: nothing.
	Notes func() []string
	// Advisory: what is wrong is shown, and the daemon is ready nevertheless.
	Advisory bool
}

// Check is what /readyz looks at for a single volume.
func (v *Volume) Check() Check {
	return Check{Name: v.cfg.Namespace + "/" + v.cfg.Name, Ready: v.Ready, View: v.describe, Notes: v.Notes}
}

// NewMux answers what an orchestrator asks a daemon: /healthz, whether it lives,
// and /readyz, whether all checks are good; its body names each.
func NewMux(checks func() []Check) *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		body, ready := examine(r.Context(), checks())
		if !ready {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		fmt.Fprint(w, body)
	})
	return mux
}

// makeChecks makes all checks at once.
func makeChecks(ctx context.Context, checks []Check) []error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	errs := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { errs[i] = c.Ready(ctx) })
	}
	wg.Wait()
	return errs
}

// examine makes all checks at once, and lists them as Kubernetes's own
// components do.
func examine(ctx context.Context, checks []Check) (body string, ready bool) {
	errs := makeChecks(ctx, checks)
	var b strings.Builder
	ready = true
	for i, c := range checks {
		problem := strings.ReplaceAll(fmt.Sprint(errs[i]), "\n", "; ")
		switch {
		case errs[i] == nil:
			fmt.Fprintf(&b, "[+] %s: ok\n", c.Name)
		case c.Advisory:
			fmt.Fprintf(&b, "[!] %s: %s\n", c.Name, problem)
		default:
			ready = false
			fmt.Fprintf(&b, "[-] %s: %s\n", c.Name, problem)
		}
		if c.Notes != nil {
			for _, n := range c.Notes() {
				fmt.Fprintf(&b, "[*] %s: %s\n", c.Name, n)
			}
		}
	}
	if ready {
		b.WriteString("ready\n")
	} else {
		b.WriteString("not ready\n")
	}
	return b.String(), ready
}
