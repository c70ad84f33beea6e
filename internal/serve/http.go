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

// Check is one line of /readyz.
type Check struct {
	Name string
	// Ready returns what is wrong, before ctx ends.
	Ready func(ctx context.Context) error
	// View describes a view, except its State; nil: there is none.
	View func() status.View
	// Notes are what people should know although it is ready; may be nil.
	Notes func() []string
	// Advisory: what is wrong is shown, but the daemon is ready.
	Advisory bool
}

// Check returns the line of a single volume.
func (v *Volume) Check() Check {
	return Check{Name: v.cfg.Namespace + "/" + v.cfg.Name, Ready: v.Ready, View: v.describe, Notes: v.Notes}
}

// NewMux serves /healthz, whether the daemon is alive, and /readyz, whether all checks
// pass; its body has a line for each.
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
