package programs

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Programs of all kinds notice nothing but pauses of a thousand deaths of four daemons.
// (docs/SEMANTICS.md, rule 27.)
func TestProgramsOutliveDeaths(t *testing.T) {
	longtest.Only(t)
	needs(t, "git")
	needs(t, "sqlite3")
	const deaths = 1000
	p := newPostgres(t)
	tr := history.New(t, lab.Local.NewService(t), "--wait", "-1", "--supervise", "--rule", "pg/** lock scope=node")
	if err := os.Chmod(tr.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var mounts []*lab.Supervised
	for _, name := range []string{"a", "b", "c", "d"} {
		mounts = append(mounts, lab.Supervise(tr.Mount(name)))
	}
	tr.Load(mounts[0].Mount)
	tr.Load(mounts[1].Mount)
	l := &load{t: t, volume: tr.Volume, over: make(chan struct{}), lines: make(map[string]int)}
	lab.Run(t, "sqlite3", mounts[0].Path("db"), "CREATE TABLE t (x)")
	l.transact(p, mounts[2].Mount)
	for i, m := range mounts {
		l.appendTo("log", m.Mount) // in line behind the others
		l.appendTo("log-"+m.Name, m.Mount)
		l.insert(m.Mount)
		l.commit(m.Mount)
		l.exercise(m.Mount, mounts[(i+1)%len(mounts)].Mount)
	}
	tr.GoesOn("before the deaths")
	var killers sync.WaitGroup
	for _, m := range mounts {
		killers.Go(func() {
			for range deaths / len(mounts) {
				m.BecomesSteady()
				time.Sleep(rand.N(time.Second)) // at any moment of what they do
				l.died(m.Mount)
				m.KillWorker()
			}
		})
	}
	killers.Wait()
	tr.GoesOn("after the deaths")
	l.finish()
	tr.Finish()
	tr.Spared()
	lab.Eventually(t, "nothing stays locked", func() bool { return len(tr.LS()) == 0 })
}

// load is programs that work until it is over, and expect no error.
type load struct {
	t      *testing.T
	volume *lab.Volume
	over   chan struct{}
	busy   sync.WaitGroup
	checks []func()

	mu      sync.Mutex
	lines   map[string]int // GUARDED_BY(mu); appended, by file
	inserts int            // GUARDED_BY(mu)
	appends []span         // GUARDED_BY(mu); to files that nobody else uses
	deaths  []span         // GUARDED_BY(mu); they have no end
}

// span is when something on a mount began and ended.
type span struct {
	mount        *lab.Mount
	began, ended time.Time
}

func (l *load) died(m *lab.Mount) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deaths = append(l.deaths, span{mount: m, began: time.Now()})
}

// pauses returns the longest append that each death was in the way of, the shortest first.
func (l *load) pauses() (all []time.Duration) {
	for _, d := range l.deaths {
		var longest time.Duration
		for _, a := range l.appends {
			if a.mount == d.mount && a.ended.After(d.began) && a.began.Before(d.began.Add(time.Second)) {
				longest = max(longest, a.ended.Sub(a.began))
			}
		}
		all = append(all, longest)
	}
	slices.Sort(all)
	return all
}

// repeat calls do until it is over, or fails.
func (l *load) repeat(what string, do func(i int) error) {
	l.busy.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-l.over:
				l.t.Logf("%s: %d times", what, i)
				return
			default:
			}
			if err := do(i); err != nil {
				l.t.Errorf("%s: %v", what, err)
				return
			}
		}
	})
}

// appendTo has a program append lines to a file, which it opens for each.
func (l *load) appendTo(name string, m *lab.Mount) {
	p := lab.NewAgent(l.t)
	l.repeat(m.Name+" appends to "+name, func(i int) error {
		began := time.Now()
		r := p.Do(lab.Call{Op: "open", Path: m.Path(name), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_APPEND})
		if r.Errno != 0 {
			return fmt.Errorf("open: %w", r.Errno)
		}
		line := fmt.Sprintln(m.Name, i)
		if w := p.Do(lab.Call{Op: "write", FD: r.N, Data: line}); w.Errno != 0 || w.N != len(line) {
			return fmt.Errorf("write: %d, %w", w.N, w.Errno)
		}
		if c := p.Do(lab.Call{Op: "close", FD: r.N}); c.Errno != 0 {
			return fmt.Errorf("close: %w", c.Errno)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.lines[name]++
		if name != "log" {
			l.appends = append(l.appends, span{m, began, time.Now()})
		}
		return nil
	})
}

// insert has sqlite3 insert rows into a database that all mounts use.
func (l *load) insert(m *lab.Mount) {
	l.repeat(m.Name+" inserts", func(i int) error {
		query := fmt.Sprintf("INSERT INTO t VALUES ('%s %d')", m.Name, i)
		out, err := exec.Command("sqlite3", "-cmd", ".timeout 60000", m.Path("db"), query).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.inserts++
		return nil
	})
}

// commit has git commit to a repository of the mount's.
func (l *load) commit(m *lab.Mount) {
	repo := m.Path("repo-" + m.Name)
	git := func(args ...string) error {
		cmd := exec.Command("git", append([]string{"-C", repo, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "safe.directory=*", "-c", "gc.auto=20"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("git %s: %w: %s", args[0], err, out)
		}
		return nil
	}
	commits := 0
	l.repeat(m.Name+" commits", func(i int) error {
		if i == 0 {
			if err := os.Mkdir(repo, 0o755); err != nil {
				return err
			}
			return git("init", "-q")
		}
		if err := os.WriteFile(filepath.Join(repo, fmt.Sprint("file", i%7)), fmt.Appendln(nil, i), 0o644); err != nil {
			return err
		}
		if err := git("add", "."); err != nil {
			return err
		}
		if err := git("commit", "-q", "-m", fmt.Sprint(i)); err != nil {
			return err
		}
		commits++
		return nil
	})
	l.checks = append(l.checks, func() {
		if err := git("fsck", "--strict"); err != nil {
			l.t.Error(err)
		}
		out, err := exec.Command("git", "-C", repo, "-c", "safe.directory=*", "rev-list", "--count", "HEAD").Output()
		if err != nil || strings.TrimSpace(string(out)) != fmt.Sprint(commits) {
			l.t.Errorf("%s has %s commits, %v; want %d", repo, out, err, commits)
		}
	})
}

// exercise uses a file in every way on two mounts.
func (l *load) exercise(a, b *lab.Mount) {
	seed := uint64(time.Now().UnixNano())
	x := &exerciser{t: l.t, rand: rand.New(rand.NewPCG(seed, 0)), name: "exercised-" + a.Name}
	l.t.Cleanup(func() { x.tell(seed) })
	mounts := []*lab.Mount{a, b}
	l.repeat("exercise of "+x.name, func(int) error {
		x.use(mounts[x.rand.IntN(len(mounts))], 1+x.rand.IntN(60))
		return nil
	})
	l.checks = append(l.checks, func() {
		if got := l.volume.Read(x.name); got != string(x.want) {
			x.differs("the volume", []byte(got), x.want, 0)
		}
	})
}

// transact has a database in the view, and transactions.
func (l *load) transact(p *postgres, m *lab.Mount) {
	if err := os.Mkdir(m.Path("pg"), 0o700); err != nil {
		l.t.Fatal(err)
	}
	p.owns(m.Path("pg"))
	p.run("initdb", "-D", m.Path("pg/data"), "-A", "trust", "--no-sync")
	server := p.start(m.Path("pg/data"))
	p.run("pgbench", "-q", "-i", "-s", "1")
	const each = 50
	n := 0
	l.repeat("pgbench", func(int) error {
		out, err := p.command("pgbench", "-n", "-c", "2", "-t", fmt.Sprint(each/2)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		n += each
		return nil
	})
	l.checks = append(l.checks, func() {
		if got := p.ask("SELECT count(*) FROM pgbench_history"); got != n {
			l.t.Errorf("%d transactions are there, want %d", got, n)
		}
		p.run("pg_amcheck", "--install-missing", "--heapallindexed", "--parent-check", "postgres")
		if err := server.Process.Signal(unix.SIGINT); err != nil {
			l.t.Fatal(err)
		}
		if err := server.Wait(); err != nil {
			l.t.Errorf("postgres ends with %v", err)
		}
	})
}

// finish ends the programs, and checks that nothing is lost and nothing doubled.
func (l *load) finish() {
	close(l.over)
	l.busy.Wait()
	for name, n := range l.lines {
		all := strings.Split(strings.TrimSuffix(l.volume.Read(name), "\n"), "\n")
		slices.Sort(all)
		if got := len(slices.Compact(slices.Clone(all))); len(all) != n || got != n {
			l.t.Errorf("%s has %d lines, %d different ones; want %d", name, len(all), got, n)
		}
	}
	out, err := exec.Command("sqlite3", l.volume.InSource("db"), "PRAGMA integrity_check; SELECT count(*), count(DISTINCT x) FROM t").CombinedOutput()
	if want := fmt.Sprintf("ok\n%d|%d\n", l.inserts, l.inserts); err != nil || string(out) != want {
		l.t.Errorf("sqlite says %q, %v; want %q", out, err, want)
	}
	for _, check := range l.checks {
		check()
	}
	pauses := l.pauses()
	n := len(pauses)
	l.t.Logf("%d deaths; the longest append, with its open and close, in half of them at most %v, in 99 %% at most %v, in all at most %v", n, pauses[n/2], pauses[n-1-n/100], pauses[n-1])
}
