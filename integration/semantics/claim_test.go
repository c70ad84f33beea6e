package semantics

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// claims is how programs claim a job: each tries, and the one that succeeds has it.
var claims = map[string]struct {
	dir   bool // the job is one
	claim func(job, claimed string) error
	lost  []error
}{
	"rename":             {claim: unix.Rename, lost: []error{unix.ENOENT}},
	"rename a directory": {dir: true, claim: unix.Rename, lost: []error{unix.ENOENT}},
	"rename, not over another": {claim: func(job, claimed string) error {
		return unix.Renameat2(unix.AT_FDCWD, job, unix.AT_FDCWD, claimed, unix.RENAME_NOREPLACE)
	}, lost: []error{unix.ENOENT, unix.EEXIST}},
	"open and rename": {claim: func(job, claimed string) error {
		fd, err := unix.Open(job, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Rename(job, claimed)
	}, lost: []error{unix.ENOENT}},
	// The kernel links no file that it knows to have no name any more, and does not ask:
	// a job of the same name was there before.
	"link":   {claim: unix.Link, lost: []error{unix.EEXIST, unix.ENOENT}},
	"unlink": {claim: func(job, _ string) error { return unix.Unlink(job) }, lost: []error{unix.ENOENT}},
	"mkdir":  {claim: func(_, claimed string) error { return unix.Mkdir(claimed, 0o755) }, lost: []error{unix.EEXIST}},
}

// Programs on several views claim a job, which all of them have seen, all at once:
// one of them gets it, whatever their kernels remember.
func TestOneWinner(t *testing.T) { lab.Over(t, testOneWinner, lab.Local, lab.OnNetworkVolume) }

func testOneWinner(t *testing.T, on lab.Setup) {
	each := longtest.For(t) / time.Duration(len(claims))
	v := on.NewVolume(t, "--name-wait", "1m") // or the loser may be told EBUSY, by a machine under load
	views := []*lab.Mount{v.Mount("a"), v.Mount("b"), v.Mount("c")}
	for _, how := range slices.Sorted(maps.Keys(claims)) {
		t.Run(how, func(t *testing.T) {
			v.Write("known", "")
			defer os.RemoveAll(v.InSource("known"))
			defer os.RemoveAll(v.InSource("known.claimed"))
			if err := claims[how].claim(v.InSource("known"), v.InSource("known.claimed")); errors.Is(err, unix.EINVAL) {
				t.Skip("the volume knows no such rename")
			}
			outcomes := make(map[string]int)
			for i, end := 0, time.Now().Add(each); i < 16 || time.Now().Before(end); i++ {
				r := claimRound{v: v, views: views[:2+i%2], threads: 1 + i/2%2, look: i/4%2 == 1, how: how, name: fmt.Sprint("job", i)}
				if i/8%2 == 1 {
					r.name = "job" // again
				}
				r.run(t, i, outcomes)
			}
			if outcomes["nobody"] > outcomes["<nil>"] {
				t.Error("nobody wins")
			}
			t.Log(outcomes)
		})
	}
}

// One program claims a job that the other's kernel remembers by its old name, by its
// new one, or by both: the other has lost, whatever it has done with the job before.
func TestLoserIsTold(t *testing.T) { lab.Over(t, testLoserIsTold, lab.Local, lab.OnNetworkVolume) }

func testLoserIsTold(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "1m") // a mount of a busy machine gives its locks up late
	a, b := v.Mount("a"), v.Mount("b")
	winner, loser := lab.NewAgent(t), lab.NewAgent(t)
	for name, before := range map[string]func(job, claimed string){
		"seen":             func(job, _ string) { loser.Must(lab.Call{Op: "mode", Path: job}) },
		"open":             func(job, _ string) { loser.Open(job, unix.O_RDONLY) },
		"not over another": func(_, claimed string) { loser.Fails(lab.Call{Op: "mode", Path: claimed}, unix.ENOENT) },
		"stood in":         func(job, _ string) { loser.Do(lab.Call{Op: "chdir", Path: job}) },
		"of several names": func(job, _ string) { loser.Do(lab.Call{Op: "link", Path: job, Path2: job + ".link"}) },
		"written, and again": func(job, _ string) {
			loser.Do(lab.Call{Op: "close", FD: loser.Do(lab.Call{Op: "open", Path: job, Flags: unix.O_WRONLY}).N})
		},
	} {
		for _, kind := range []string{"file", "directory"} {
			t.Run(name+" "+kind, func(t *testing.T) {
				job := strings.ReplaceAll(name+" "+kind, " ", "-")
				claimed := job + ".claimed"
				if kind == "file" {
					v.Write(job, "")
				} else if err := os.Mkdir(v.InSource(job), 0o755); err != nil {
					t.Fatal(err)
				}
				loser.Must(lab.Call{Op: "mode", Path: b.Path(job)})
				before(b.Path(job), b.Path(claimed))
				winner.Must(lab.Call{Op: "rename", Path: a.Path(job), Path2: a.Path(claimed)})
				loser.Fails(lab.Call{Op: "rename", Path: b.Path(job), Path2: b.Path(claimed)}, unix.ENOENT)
				loser.Must(lab.Call{Op: "mode", Path: b.Path(claimed)})
				// And back: the kernel has two inodes of it, and knows which is where.
				winner.Must(lab.Call{Op: "rename", Path: a.Path(claimed), Path2: a.Path(job)})
				loser.Fails(lab.Call{Op: "rename", Path: b.Path(claimed), Path2: b.Path(job)}, unix.ENOENT)
				loser.Must(lab.Call{Op: "rename", Path: b.Path(job), Path2: b.Path(claimed)})
				if _, err := os.Stat(v.InSource(claimed)); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// claimRound is one job that is claimed.
type claimRound struct {
	v       *lab.Volume
	views   []*lab.Mount
	threads int  // of each view
	look    bool // others look at the names meanwhile
	how     string
	name    string
}

func (r *claimRound) run(t *testing.T, round int, outcomes map[string]int) {
	c := claims[r.how]
	job, claimed := r.name, r.name+".claimed"
	if c.dir {
		if err := os.Mkdir(r.v.InSource(job), 0o755); err != nil {
			t.Fatal(err)
		}
	} else {
		r.v.Write(job, "")
	}
	defer os.RemoveAll(r.v.InSource(job))
	defer os.RemoveAll(r.v.InSource(claimed))
	var looking, claiming sync.WaitGroup
	var mu sync.Mutex
	wins := 0
	start, done := make(chan struct{}), make(chan struct{})
	for _, m := range r.views {
		var st unix.Stat_t
		for _, name := range []string{job, claimed} {
			_ = unix.Stat(m.Path(name), &st)
		}
		if r.look {
			looking.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					var st unix.Stat_t
					_ = unix.Stat(m.Path(claimed), &st)
					_, _ = os.ReadDir(m.Dir)
				}
			})
		}
		for range r.threads {
			claiming.Go(func() {
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				<-start
				err := c.claim(m.Path(job), m.Path(claimed))
				mu.Lock()
				defer mu.Unlock()
				outcomes[fmt.Sprint(err)]++
				switch {
				case err == nil:
					wins++
				case !slices.ContainsFunc(c.lost, func(e error) bool { return errors.Is(err, e) }):
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
	}
	close(start)
	claiming.Wait()
	close(done)
	looking.Wait()
	if wins == 0 && lab.MayHaveNoWinner(r.how) {
		outcomes["nobody"]++
	} else if wins != 1 {
		t.Errorf("round %d of %d views with %d threads, watched: %v: %d have claimed %s", round, len(r.views), r.threads, r.look, wins, filepath.Base(job))
	}
}
