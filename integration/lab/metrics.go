package lab

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// MountWatched is mount, with /metrics at an address of its own.
func (v *Volume) MountWatched(name string, args ...string) *Watched {
	v.T.Helper()
	addr := ownNetwork(v.T) + "1:8080" // a port that is found free may be another's a moment later
	return &Watched{v.Mount(name, append(args, "--http", addr)...), "http://" + addr + "/metrics"}
}

// Watched is a mount whose metrics are read.
type Watched struct {
	*Mount
	URL string
}

// Metrics returns what is served, by the text before the value.
func (w *Watched) Metrics() map[string]float64 {
	w.T.Helper()
	resp, err := http.Get(w.URL)
	if err != nil {
		w.T.Fatal(err)
	}
	defer resp.Body.Close()
	all := make(map[string]float64)
	lines := bufio.NewScanner(io.LimitReader(resp.Body, 1<<20))
	for lines.Scan() {
		i := strings.LastIndexByte(lines.Text(), ' ')
		if i < 0 || lines.Text()[0] == '#' {
			continue
		}
		value, err := strconv.ParseFloat(lines.Text()[i+1:], 64)
		if err != nil {
			w.T.Fatalf("served %q", lines.Text())
		}
		all[lines.Text()[:i]] = value
	}
	if lines.Err() != nil {
		w.T.Fatal(lines.Err())
	}
	return all
}

// Metric returns one of the volume's. by is its other labels, with a comma behind those that sort
// before name, and before those after namespace.
func (w *Watched) Metric(name string, by ...string) float64 {
	w.T.Helper()
	space, volume := "default", "source"
	for _, e := range w.Vol.Env {
		if is, ok := strings.CutPrefix(e, "LOCKFS_NAMESPACE="); ok {
			space = is
		}
		if is, ok := strings.CutPrefix(e, "LOCKFS_NAME="); ok {
			volume = is
		}
	}
	labels := fmt.Sprintf("name=%q,namespace=%q", volume, space)
	for _, l := range by {
		if l < "name" {
			labels = l + "," + labels
		} else {
			labels += "," + l
		}
	}
	return w.Metrics()[fmt.Sprintf("%s{%s}", name, labels)]
}

func (w *Watched) Has(want float64, name string, by ...string) {
	w.T.Helper()
	Eventually(w.T, fmt.Sprintf("%s: %s%q is %v", w.Name, name, by, want), func() bool { return w.Metric(name, by...) == want })
}

// Ready is what /readyz of a mount answers.
func (w *Watched) Ready() (status int, body string) {
	w.T.Helper()
	resp, err := http.Get(strings.TrimSuffix(w.URL, "metrics") + "readyz")
	if err != nil {
		w.T.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.T.Fatal(err)
	}
	return resp.StatusCode, string(text)
}
