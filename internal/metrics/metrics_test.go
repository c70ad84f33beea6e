package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// busy returns a registry whose one volume has seen everything.
func busy(t *testing.T) *Registry {
	t.Helper()
	r := New("v0.0.0-test")
	v := r.Volume("team", "shared")
	contended := &lockmgr.ContendedError{}
	for _, e := range []lockmgr.Event{
		lockmgr.RequestEnded{Took: 2 * time.Millisecond},
		lockmgr.RequestEnded{Took: time.Second, Contended: true, Waited: time.Second, Mode: lockmgr.Shared},
		lockmgr.RequestEnded{Joined: true},
		lockmgr.RequestEnded{Contended: true, Err: contended},
		lockmgr.RequestEnded{Contended: true, Waited: 30 * time.Second, Err: &lockmgr.ContendedError{Err: context.DeadlineExceeded}},
		lockmgr.RequestEnded{Contended: true, Waited: time.Second, Err: &lockmgr.ContendedError{Err: context.Canceled}},
		lockmgr.RequestEnded{Err: fmt.Errorf("%w: f", lockmgr.ErrDeadlock)},
		lockmgr.RequestEnded{Err: lockmgr.ErrUnavailable},
		lockmgr.RequestEnded{Err: lockmgr.ErrClosed},
		lockmgr.RequestWaits{},
		lockmgr.AdvisoryEnded{},
		lockmgr.AdvisoryEnded{Contended: true, Waited: 3 * time.Second},
		lockmgr.AdvisoryEnded{Contended: true, Err: lockmgr.ErrContended},
		lockmgr.AdvisoryEnded{Contended: true, Waited: time.Second, Err: lockmgr.ErrDeadlock},
		lockmgr.RequestEnded{Kept: true, Took: time.Microsecond},
		lockmgr.LockRecalled{Idle: true},
		lockmgr.DirectoryDelegated{},
		lockmgr.DirectoryRecalled{Open: 2},
		lockmgr.LockReleased{Held: time.Minute},
		lockmgr.LockLost{Cause: fmt.Errorf("%w: %w by alice: it hangs", lockmgr.ErrLockLost, lockmgr.ErrBroken)},
		lockmgr.LockLost{Cause: lockmgr.ErrLockLost},
		lockmgr.LockLost{Cause: fmt.Errorf("%w: %w", lockmgr.ErrLockLost, lockmgr.ErrVolumeGone)},
		lockmgr.LockLost{Cause: lockmgr.SessionLost(renew.ErrGone)},
		lockmgr.LockLost{Cause: lockmgr.SessionLost(renew.ErrUnanswered)},
		lockmgr.SessionRenewed{Took: time.Millisecond},
		lockmgr.SessionRenewed{Took: 2 * time.Second, Err: context.DeadlineExceeded},
		lockmgr.SessionChanged{State: renew.Held, Cause: errors.New("trouble")},
		lockmgr.SessionChanged{State: renew.Suspended, Cause: renew.ErrUnanswered},
		lockmgr.SessionChanged{State: renew.Lost, Cause: fmt.Errorf("%w: reported", renew.ErrGone)},
		lockmgr.SessionChanged{State: renew.Lost, Cause: fmt.Errorf("%w: timeout", renew.ErrUnanswered)},
		lockmgr.SessionChanged{State: renew.Lost, Cause: renew.ErrClosed},
	} {
		v.Observe(e)
	}
	r.Configuration(func() error { return errors.New("a mistake") })
	v.Mounted(
		func() lockmgr.Stats {
			return lockmgr.Stats{Held: 3, Kept: 5, Dirs: 6, Waiting: 2, AdvisoryHeld: 8, AdvisoryWaiting: 9, Sessions: map[renew.State]int{renew.Held: 1, renew.Suspended: 0}}
		},
		func() fs.Stats {
			requests := []fs.RequestCount{{Request: "write", Result: "ok", Count: 7}}
			for _, result := range []string{"contended", "stale", "interrupted", "unavailable", "io_error", "full", "exhausted", "refused"} {
				requests = append(requests, fs.RequestCount{Request: "open", Result: result, Count: 1})
			}
			return fs.Stats{Requests: requests, Inodes: 10, Limit: 100, Open: 4}
		},
		func() Health { return Health{Available: true, RulesBroken: 2} })
	return r
}

func scrape(t *testing.T, r *Registry) string {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler(slog.New(slog.DiscardHandler)).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

func TestValues(t *testing.T) {
	body := scrape(t, busy(t))
	const of = `{name="shared",namespace="team"`
	for _, want := range []string{
		`lockfs_build_info{version="v0.0.0-test"} 1`,
		`lockfs_config_rejected 1`,
		`lockfs_volume_mounted` + of + `} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="granted"} 1`,
		`lockfs_lock_requests_total{mode="shared",name="shared",namespace="team",result="granted"} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="joined"} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="contended"} 2`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="interrupted"} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="deadlock"} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="unavailable"} 1`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="failed"} 1`,
		`lockfs_lock_acquire_seconds_count` + of + `} 2`,
		`lockfs_lock_wait_seconds_count` + of + `} 4`,
		`lockfs_lock_wait_seconds_sum` + of + `} 32`,
		`lockfs_lock_held_seconds_sum` + of + `} 60`,
		`lockfs_lock_losses_total{cause="broken",name="shared",namespace="team"} 1`,
		`lockfs_lock_losses_total{cause="deleted",name="shared",namespace="team"} 1`,
		`lockfs_lock_losses_total{cause="gone",name="shared",namespace="team"} 1`,
		`lockfs_lock_losses_total{cause="unanswered",name="shared",namespace="team"} 1`,
		`lockfs_session_renewals_total{name="shared",namespace="team",result="ok"} 1`,
		`lockfs_session_renewals_total{name="shared",namespace="team",result="failed"} 1`,
		`lockfs_session_suspensions_total` + of + `} 1`,
		`lockfs_session_losses_total{cause="gone",name="shared",namespace="team"} 1`,
		`lockfs_session_losses_total{cause="unanswered",name="shared",namespace="team"} 1`,
		`lockfs_sessions{name="shared",namespace="team",state="held"} 1`,
		`lockfs_locks_held` + of + `} 3`,
		`lockfs_locks_kept` + of + `} 5`,
		`lockfs_lock_requests_total{mode="exclusive",name="shared",namespace="team",result="kept"} 1`,
		`lockfs_lock_recalls_total{idle="true",name="shared",namespace="team"} 1`,
		`lockfs_directories_delegated` + of + `} 6`,
		`lockfs_directory_delegations_total` + of + `} 1`,
		`lockfs_directory_recalls_total{name="shared",namespace="team",open="true"} 1`,
		`lockfs_lock_requests_waiting` + of + `} 2`,
		`lockfs_fs_requests_total{name="shared",namespace="team",request="write",result="ok"} 7`,
		`lockfs_fs_inodes` + of + `} 10`,
		`lockfs_fs_inodes_limit` + of + `} 100`,
		`lockfs_volume_available` + of + `} 1`,
		`lockfs_volume_rules_broken{accepted="false",` + of[1:] + `} 2`,
		`lockfs_fs_open_files` + of + `} 4`,
	} {
		if !strings.Contains(body, want+"\n") {
			t.Errorf("not served: %s", want)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}

// A volume's counts outlive its view, and end when it is not served any more.
func TestVolumesComeAndGo(t *testing.T) {
	r := busy(t)
	other := r.Volume("team", "other")
	other.Observe(lockmgr.LockReleased{})
	r.Volume("team", "shared").Mounted(nil, nil, nil)
	body := scrape(t, r)
	for want, is := range map[string]bool{
		`lockfs_volume_mounted{name="shared",namespace="team"} 0`:            true,
		`lockfs_volume_mounted{name="other",namespace="team"} 0`:             true,
		`lockfs_session_suspensions_total{name="shared",namespace="team"} 1`: true,
		`lockfs_lock_held_seconds_count{name="other",namespace="team"} 1`:    true,
		"lockfs_locks_held": false,
	} {
		if strings.Contains(body, want) != is {
			t.Errorf("served: %v, want %v: %s", !is, is, want)
		}
	}
	r.Forget("team", "shared")
	r.Forget("team", "shared")
	if body = scrape(t, r); strings.Contains(body, `name="shared"`) || !strings.Contains(body, `name="other"`) {
		t.Errorf("after one volume went:\n%s", body)
	}
	r.Volume("team", "shared").Observe(lockmgr.LockReleased{})
	if !strings.Contains(scrape(t, r), `lockfs_lock_held_seconds_count{name="shared",namespace="team"} 1`) {
		t.Error("a volume that comes back is not counted anew")
	}

	var none *Registry // as with --http off
	v := none.Volume("a", "b")
	v.Observe(lockmgr.LockReleased{})
	v.Mounted(nil, nil, nil)
	none.Forget("a", "b")
	none.Configuration(func() error { return nil })
}

// families are the metrics of ours that are served.
func families(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	all, err := busy(t).reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool { return !strings.HasPrefix(f.GetName(), "lockfs_") })
}

func TestNamesAreAsPrometheusWants(t *testing.T) {
	problems, err := promlint.NewWithMetricFamilies(families(t)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

var row = regexp.MustCompile("(?m)^\\| `(lockfs_[a-z_]+)` \\| (\\w+) \\|([^|]*)\\| ?(\\w*) \\|")

// docs/METRICS.md lists the metrics that are served, and no other.
func TestTable(t *testing.T) {
	doc, err := os.ReadFile("../../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string) // type, labels, unit
	for _, m := range row.FindAllStringSubmatch(string(doc), -1) {
		rows[m[1]] = []string{m[2], strings.Join(strings.Fields(strings.ReplaceAll(m[3], "`", "")), " "), m[4]}
	}
	for _, f := range families(t) {
		name := f.GetName()
		documented, ok := rows[name]
		delete(rows, name)
		if !ok {
			t.Errorf("%s is not in the table", name)
			continue
		}
		labels := make(map[string]bool)
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = true
				if l.GetName() != "namespace" && l.GetName() != "name" && l.GetName() != "version" && !strings.Contains(string(doc), "`"+l.GetValue()+"`") {
					t.Errorf("%s: the value %s of %s is not explained", name, l.GetValue(), l.GetName())
				}
			}
		}
		if of := labels["namespace"] && labels["name"]; of == slices.Contains([]string{"lockfs_build_info", "lockfs_config_rejected"}, name) {
			t.Errorf("%s has the labels %v", name, labels)
		}
		delete(labels, "namespace")
		delete(labels, "name")
		var extra []string
		for l := range labels {
			extra = append(extra, l)
		}
		slices.Sort(extra)
		got := []string{strings.ToLower(f.GetType().String()), strings.Join(extra, " "), documented[2]}
		if !slices.Equal(got, documented) {
			t.Errorf("%s is a %s with the labels %q, the table says %s, %q", name, got[0], got[1], documented[0], documented[1])
		}
		if seconds := strings.HasSuffix(name, "_seconds"); seconds != (documented[2] == "seconds") {
			t.Errorf("%s: the table says its unit is %q", name, documented[2])
		}
	}
	for name := range rows {
		t.Errorf("%s is in the table, and not served", name)
	}
}

func BenchmarkObserve(b *testing.B) {
	v := New("").Volume("team", "shared")
	var e lockmgr.Event = lockmgr.RequestEnded{Took: 2 * time.Millisecond}
	for b.Loop() {
		v.Observe(e)
	}
}
