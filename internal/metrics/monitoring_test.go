package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	dto "github.com/prometheus/client_model/go"
)

const monitoring = "../../deploy/monitoring/"

// served are the metrics that a scrape of a daemon has, by the names that
// expressions use, with the label values that were seen.
func served(t *testing.T) map[string]map[string][]string {
	t.Helper()
	all, err := busy(t).reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]map[string][]string{"up": {"job": {"lockfs"}}}
	for _, f := range all {
		values := map[string][]string{"instance": nil, "job": {"lockfs"}}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				values[l.GetName()] = append(values[l.GetName()], l.GetValue())
			}
		}
		if f.GetType() != dto.MetricType_HISTOGRAM {
			names[f.GetName()] = values
			continue
		}
		names[f.GetName()+"_count"], names[f.GetName()+"_sum"] = values, values
		values["le"] = nil
		names[f.GetName()+"_bucket"] = values
	}
	return names
}

var (
	selector = regexp.MustCompile(`([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(\{[^}]*\})?\s*(\(?)`)
	matcher  = regexp.MustCompile(`([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\b(by|without)\s*\(([^)]*)\)`)
	ranges   = regexp.MustCompile(`\[[^\]]*\]`)
)

// check finds in a PromQL expression what the daemon does not serve: metrics,
// labels, and values of labels. It knows no grammar, but that whatever is followed
// by a parenthesis is a function, and everything else that has a name is a metric.
func check(expr string, served map[string]map[string][]string) (problems []string) {
	var labels []string
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		labels = append(labels, strings.FieldsFunc(g[2], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	bare := ranges.ReplaceAllString(grouping.ReplaceAllString(expr, ""), "")
	if strings.Count(bare, "(") != strings.Count(bare, ")") {
		problems = append(problems, "its parentheses do not match")
	}
	found := 0
	for _, s := range selector.FindAllStringSubmatch(bare, -1) {
		name := s[1]
		if s[3] != "" && s[2] == "" { // a function
			continue
		}
		values, ok := served[name]
		if !ok {
			problems = append(problems, "no metric "+name)
			continue
		}
		found++
		for _, l := range labels {
			if _, ok := values[l]; !ok {
				problems = append(problems, name+" has no label "+l)
			}
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			known, ok := values[m[1]]
			if !ok {
				problems = append(problems, name+" has no label "+m[1])
			}
			for v := range strings.SplitSeq(m[3], "|") {
				if !strings.HasPrefix(v, "$") && known != nil && !slices.Contains(known, v) {
					problems = append(problems, fmt.Sprintf("%s of %s is never %s", m[1], name, v))
				}
			}
		}
	}
	if found == 0 {
		problems = append(problems, "it names no metric")
	}
	return problems
}

func TestCheck(t *testing.T) {
	metrics := served(t)
	for expr, want := range map[string]string{
		`sum by (namespace) (rate(lockfs_session_renewals_total{result="failed"}[5m])) > 0`:      "",
		`histogram_quantile(0.9, sum by (le) (rate(lockfs_lock_wait_seconds_bucket[$__rate]))) `: "",
		`process_open_fds{job="lockfs"} / process_max_fds > 0.9`:                                 "",
		`rate(lockfs_session_renewal_total[5m])`:                                                 "no metric lockfs_session_renewal_total; it names no metric",
		`lockfs_lock_wait_seconds > 1`:                                                           "no metric lockfs_lock_wait_seconds; it names no metric",
		`lockfs_sessions{state="suspend"}`:                                                       "state of lockfs_sessions is never suspend",
		`lockfs_sessions{status="held"}`:                                                         "lockfs_sessions has no label status",
		`sum by (cause) (lockfs_locks_held)`:                                                     "lockfs_locks_held has no label cause",
		`sum(lockfs_locks_held))`:                                                                "its parentheses do not match",
		`vector(1)`:                                                                              "it names no metric",
	} {
		if got := strings.Join(check(expr, metrics), "; "); got != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Each alert asks for metrics that are served, and says what to do where
// docs/OPERATIONS.md does; that has no others.
func TestAlerts(t *testing.T) {
	var rule struct {
		Kind string
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr         string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal(read(t, monitoring+"prometheusrule.yaml"), &rule); err != nil {
		t.Fatal(err)
	}
	sections := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^### (Lockfs\w+)$`).FindAllSubmatch(read(t, "../../docs/OPERATIONS.md"), -1) {
		sections[string(m[1])] = true
	}
	metrics := served(t)
	for _, g := range rule.Spec.Groups {
		for _, a := range g.Rules {
			for _, p := range check(a.Expr, metrics) {
				t.Errorf("%s: %s", a.Alert, p)
			}
			if !sections[a.Alert] {
				t.Errorf("docs/OPERATIONS.md does not say what to do for %s", a.Alert)
			}
			delete(sections, a.Alert)
			if want := "docs/OPERATIONS.md#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
				t.Errorf("%s refers to %s, want %s", a.Alert, a.Annotations["runbook_url"], want)
			}
			if a.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
				t.Errorf("%s has no summary, or is %q", a.Alert, a.Labels["severity"])
			}
		}
	}
	for s := range sections {
		t.Errorf("docs/OPERATIONS.md speaks of %s, which is no alert", s)
	}
}

// What an alert counts is 0 before it happens: Prometheus sees no increase in a
// series that begins with its first event. Requests of the kernel's are left
// out, for one that fails is made again.
func TestAlertsSeeTheFirst(t *testing.T) {
	r := New("v0.0.0-test")
	r.Volume("team", "shared")
	fresh, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := regexp.MustCompile(`(?:rate|increase)\((lockfs_(?:(?:lock|session)_\w+|takeovers)_total)(?:\{(\w+)="(\w+)"\})?`)
	seen := 0
	for _, c := range counted.FindAllStringSubmatch(string(read(t, monitoring+"prometheusrule.yaml")), -1) {
		if c[1] == "lockfs_lock_requests_total" && c[2] == "" {
			continue // how many there were at all
		}
		seen++
		i := slices.IndexFunc(fresh, func(f *dto.MetricFamily) bool { return f.GetName() == c[1] })
		if i < 0 || !slices.ContainsFunc(fresh[i].GetMetric(), func(m *dto.Metric) bool {
			return c[2] == "" || slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == c[2] && l.GetValue() == c[3] })
		}) {
			t.Errorf("%s is not there before it counts", c[0])
		}
	}
	if seen < 5 {
		t.Errorf("found only %d counters in the alerts", seen)
	}
}

// Each panel shows metrics that are served.
func TestDashboard(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			ID          int
			Type, Title string
			Targets     []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Definition string }
		}
	}
	if err := json.Unmarshal(read(t, monitoring+"dashboard.json"), &dashboard); err != nil {
		t.Fatal(err)
	}
	metrics := served(t)
	shown := make(map[string]bool)
	ids := make(map[int]bool)
	for _, p := range dashboard.Panels {
		if ids[p.ID] {
			t.Errorf("two panels have the id %d", p.ID)
		}
		ids[p.ID] = true
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%s shows nothing", p.Title)
		}
		for _, target := range p.Targets {
			for _, problem := range check(target.Expr, metrics) {
				t.Errorf("%s: %s", p.Title, problem)
			}
			for _, s := range selector.FindAllStringSubmatch(target.Expr, -1) {
				shown[regexp.MustCompile(`_(bucket|count|sum)$`).ReplaceAllString(s[1], "")] = true
			}
		}
	}
	for _, f := range families(t) {
		if !shown[f.GetName()] {
			t.Errorf("%s is not shown", f.GetName())
		}
	}
	for _, v := range dashboard.Templating.List {
		if v.Definition != "" && !strings.Contains(v.Definition, "lockfs_volume_mounted") {
			t.Errorf("the variable %s is from %s", v.Name, v.Definition)
		}
	}
}
