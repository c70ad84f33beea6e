package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// mountWatched is mount, with /metrics at an address of its own.
func (v *volume) mountWatched(name string, args ...string) *watched {
	v.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		v.t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	return &watched{v.mount(name, append(args, "--http", addr)...), "http://" + addr + "/metrics"}
}

// watched is a mount whose metrics are read.
type watched struct {
	*mount
	url string
}

// metrics returns what is served, by the text before the value.
func (w *watched) metrics() map[string]float64 {
	w.t.Helper()
	resp, err := http.Get(w.url)
	if err != nil {
		w.t.Fatal(err)
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
			w.t.Fatalf("served %q", lines.Text())
		}
		all[lines.Text()[:i]] = value
	}
	if lines.Err() != nil {
		w.t.Fatal(lines.Err())
	}
	return all
}

// metric returns one of the volume's. by is its other labels, with a comma behind
// those that sort before name, and one before those that sort after namespace.
func (w *watched) metric(name string, by ...string) float64 {
	w.t.Helper()
	labels := `name="source",namespace="default"`
	for _, l := range by {
		if l < "name" {
			labels = l + "," + labels
		} else {
			labels += "," + l
		}
	}
	return w.metrics()[fmt.Sprintf("%s{%s}", name, labels)]
}

func (w *watched) has(want float64, name string, by ...string) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%s: %s%q is %v", w.name, name, by, want), func() bool { return w.metric(name, by...) == want })
}

func TestMetrics(t *testing.T) {
	v := newVolume(t)
	a, b := v.mountWatched("a"), v.mountWatched("b", "--slow-wait", "50ms", "--log-level", "debug")
	if got := a.metric("lockfs_volume_mounted"); got != 1 {
		t.Errorf("lockfs_volume_mounted is %v", got)
	}
	holder, waiter := newAgent(t), newAgent(t)
	fd := holder.must(call{Op: "open", Path: a.path("f"), Flags: unix.O_CREAT | unix.O_WRONLY})
	holder.must(call{Op: "open", Path: a.path("f"), Flags: unix.O_WRONLY})
	for range 3 {
		holder.must(call{Op: "write", FD: fd, Data: "x"})
	}
	a.has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="granted"`)
	a.has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="joined"`)
	a.has(1, "lockfs_lock_acquire_seconds_count")
	a.has(1, "lockfs_locks_held")
	a.has(2, "lockfs_fs_open_files")
	a.has(1, "lockfs_sessions", `state="held"`)
	a.has(3, "lockfs_fs_requests_total", `request="write"`, `result="ok"`)

	if r := waiter.do(call{Op: "open", Path: b.path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno != unix.EAGAIN {
		t.Fatalf("open of a file that another has: %v", r.Err())
	}
	b.has(1, "lockfs_fs_requests_total", `request="open"`, `result="contended"`)
	b.has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="contended"`)
	b.has(1, "lockfs_lock_wait_seconds_count")
	waits := waiter.start(call{Op: "open", Path: b.path("f"), Flags: unix.O_WRONLY})
	b.has(1, "lockfs_lock_requests_waiting")
	eventually(t, "the wait is reported", func() bool { return strings.Contains(b.log.String(), "lock waited for") })
	id := v.ls()[1].Lock[:8]
	holder.kill()
	r := await(t, "the open", waits)
	a.has(0, "lockfs_locks_held")
	a.has(0, "lockfs_fs_open_files")
	a.has(1, "lockfs_lock_held_seconds_count")
	b.has(0, "lockfs_lock_requests_waiting")
	b.has(2, "lockfs_lock_wait_seconds_count")
	waiter.must(call{Op: "close", FD: r.N})
	for _, msg := range []string{"lock asked for", "lock is another owner's", "lock waited for", "lock granted", "lock released"} {
		eventually(t, "the log says of "+id+": "+msg, func() bool {
			for line := range strings.Lines(b.log.String()) {
				if strings.Contains(line, `msg="`+msg+`"`) && strings.Contains(line, "lock="+id) && strings.Contains(line, "path=f") {
					return true
				}
			}
			return false
		})
	}

	waiter.must(call{Op: "open", Path: b.path("g"), Flags: unix.O_CREAT | unix.O_WRONLY})
	run := v.command("break", "--reason", "test", b.path("g"))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("lockfs break: %v: %s", err, out)
	}
	b.has(1, "lockfs_lock_losses_total", `cause="broken"`)
	b.has(0, "lockfs_session_losses_total", `cause="gone"`)
	eventually(t, "a renewal is counted", func() bool {
		return a.metric("lockfs_session_renewal_seconds_count") > 0 && a.metric("lockfs_session_renewals_total", `result="ok"`) > 0
	})
	if b.metrics()["process_open_fds"] <= b.metric("lockfs_fs_inodes") {
		t.Error("not every inode has a descriptor")
	}
}
