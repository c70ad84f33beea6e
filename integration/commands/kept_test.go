package commands

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// fill makes files in a directory until it is delegated to their mount, and returns how many.
func fill(v *lab.Volume, p *lab.Agent, m *lab.Watched, dir string) (n int) {
	v.T.Helper()
	if err := os.MkdirAll(v.InSource(dir), 0o777); err != nil {
		v.T.Fatal(err)
	}
	lab.Eventually(v.T, "the directory is delegated", func() bool {
		n++
		fd := p.Open(m.Path(fmt.Sprintf("%s/%d", dir, n)), unix.O_CREAT|unix.O_WRONLY)
		p.Must(lab.Call{Op: "close", FD: fd})
		return m.Metric("lockfs_directories_delegated") == 1
	})
	return n
}

// The metrics count directories that are delegated, recalls of them and of kept locks, and opens
// that cost no commit: as many as there were.
func TestMetricsOfKeptLocks(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--keep", "1m")
	a, b := v.MountWatched("a"), v.MountWatched("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	asked := func() float64 { return a.Metric("lockfs_lock_requests_total", `mode="exclusive"`, `result="granted"`) }
	kept := func() float64 { return a.Metric("lockfs_lock_requests_total", `mode="exclusive"`, `result="kept"`) }
	joined := func() float64 { return a.Metric("lockfs_lock_requests_total", `mode="exclusive"`, `result="joined"`) }
	ofB := func(name string) {
		t.Helper()
		q.Must(lab.Call{Op: "close", FD: q.Open(b.Path(name), unix.O_WRONLY|unix.O_CREAT)})
	}

	made := float64(fill(v, p, a, "d"))
	a.Has(1, "lockfs_directory_delegations_total")
	lab.Eventually(t, "all creations are counted", func() bool { return kept()+asked() == made })
	const opens = 50
	lab.Eventually(t, "opens are counted as kept", func() bool { // all, unless the machine stops for seconds
		before := kept() + joined()
		for range opens {
			p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("d/1"), unix.O_WRONLY)})
		}
		made += opens
		lab.Eventually(t, "all opens are counted", func() bool { // one joins another that the kernel has not released yet
			return kept()+asked()+joined() == made
		})
		return kept()+joined()-before >= opens/2
	})
	a.Has(0, "lockfs_locks_held") // else the recall finds the last one open
	ofB("d/1")
	a.Has(0, "lockfs_directories_delegated")
	a.Has(1, "lockfs_directory_recalls_total", `open="false"`)
	fill(v, p, a, "e")
	fd := p.Open(a.Path("e/open"), unix.O_WRONLY|unix.O_CREAT)
	ofB("e/1")
	lab.Eventually(t, "two recalls are counted", func() bool { // of e, with an open file, unless that has an entry by now
		return a.Metric("lockfs_directory_recalls_total", `open="false"`)+a.Metric("lockfs_directory_recalls_total", `open="true"`) == 2
	})
	a.Has(2, "lockfs_directory_delegations_total")
	p.Must(lab.Call{Op: "close", FD: fd})

	lab.Eventually(t, "a lock is kept", func() bool {
		p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("again"), unix.O_WRONLY|unix.O_CREAT)})
		return a.Metric("lockfs_locks_kept") == 1
	})
	ofB("again")
	a.Has(0, "lockfs_locks_kept")
	a.Has(1, "lockfs_lock_recalls_total", `idle="true"`)
	if n := b.Metric("lockfs_directory_delegations_total"); n != 0 {
		t.Errorf("%v directories were delegated to b", n)
	}
}

// 'lockfs ls' says since when a lock is kept: since its last close, or, of a directory, since it is
// delegated.
func TestKeptSince(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--keep", "1m")
	a := v.MountWatched("a")
	p := lab.NewAgent(t)
	// The service is told of another owner, and of his close, a moment later.
	since := func(path string, least time.Time) {
		t.Helper()
		lab.Eventually(t, fmt.Sprintf("%s is kept since %v or later", path, least), func() bool {
			status, stdout, stderr := lab.Outcome(t, v.Command("ls", "-o", "json", v.Source))
			var lines []struct {
				Path, State string
				Since       time.Time
			}
			if err := json.Unmarshal([]byte(stdout), &lines); status != 0 || err != nil {
				t.Fatal(status, stderr, err)
			}
			for _, l := range lines {
				if l.Path != path || l.State != "kept" || l.Since.Before(least) {
					continue
				}
				if l.Since.After(time.Now()) {
					t.Errorf("%s is kept since %v", path, l.Since)
				}
				_, stdout, _ := lab.Outcome(t, v.Command("ls", "-o", "wide", v.Source))
				if !strings.Contains(stdout, l.Since.Format(time.RFC3339)) {
					t.Errorf("%s is kept since %v, and -o wide says\n%s", path, l.Since, stdout)
				}
				return true
			}
			return false
		})
	}
	var closed time.Time
	lab.Eventually(t, "a lock is kept", func() bool {
		fd := p.Open(a.Path("again"), unix.O_WRONLY|unix.O_CREAT)
		p.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		closed = time.Now()
		p.Must(lab.Call{Op: "close", FD: fd})
		return a.Metric("lockfs_locks_kept") == 1
	})
	since("again", closed)
	begin := time.Now()
	fill(v, p, a, "d")
	since("d", begin)
}
