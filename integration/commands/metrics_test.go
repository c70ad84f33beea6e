package commands

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

func TestMetrics(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.MountWatched("a"), v.MountWatched("b", "--slow-wait", "50ms", "--log-level", "debug")
	a.Has(1, "lockfs_volume_mounted")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Must(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_CREAT | unix.O_WRONLY})
	holder.Must(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY})
	for range 3 {
		holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	}
	a.Has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="granted"`)
	a.Has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="joined"`)
	a.Has(1, "lockfs_lock_acquire_seconds_count")
	a.Has(1, "lockfs_locks_held")
	a.Has(2, "lockfs_fs_open_files")
	a.Has(1, "lockfs_sessions", `state="held"`)
	a.Has(3, "lockfs_fs_requests_total", `request="write"`, `result="ok"`)

	if r := waiter.InTime(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); r.Errno != unix.EAGAIN {
		t.Fatalf("open of a file that another has: %v", r.Err())
	}
	b.Has(1, "lockfs_fs_requests_total", `request="open"`, `result="contended"`)
	b.Has(1, "lockfs_lock_requests_total", `mode="exclusive"`, `result="contended"`)
	b.Has(1, "lockfs_lock_wait_seconds_count")
	waits := waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	b.Has(1, "lockfs_lock_requests_waiting")
	lab.Eventually(t, "the wait is reported", func() bool { return strings.Contains(b.Log.String(), "lock waited for") })
	id := v.LS()[1].Lock[:8]
	holder.Kill()
	r := lab.Await(t, "the open", waits)
	a.Has(0, "lockfs_locks_held")
	a.Has(0, "lockfs_fs_open_files")
	a.Has(1, "lockfs_lock_held_seconds_count")
	b.Has(0, "lockfs_lock_requests_waiting")
	b.Has(2, "lockfs_lock_wait_seconds_count")
	waiter.Must(lab.Call{Op: "close", FD: r.N})
	for _, msg := range []string{"lock asked for", "lock is another owner's", "lock waited for", "lock granted", "lock released"} {
		lab.Eventually(t, "the log says of "+id+": "+msg, func() bool {
			for line := range strings.Lines(b.Log.String()) {
				if strings.Contains(line, `msg="`+msg+`"`) && strings.Contains(line, "lock="+id) && strings.Contains(line, "path=f") {
					return true
				}
			}
			return false
		})
	}

	waiter.Must(lab.Call{Op: "open", Path: b.Path("g"), Flags: unix.O_CREAT | unix.O_WRONLY})
	run := v.Command("break", "--reason", "test", b.Path("g"))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("lockfs break: %v: %s", err, out)
	}
	b.Has(1, "lockfs_lock_losses_total", `cause="broken"`)
	b.Has(0, "lockfs_session_losses_total", `cause="gone"`)
	lab.Eventually(t, "a renewal is counted", func() bool {
		return a.Metric("lockfs_session_renewal_seconds_count") > 0 && a.Metric("lockfs_session_renewals_total", `result="ok"`) > 0
	})
	if b.Metrics()["process_open_fds"] <= b.Metric("lockfs_fs_inodes") {
		t.Error("not every inode has a descriptor")
	}
}
