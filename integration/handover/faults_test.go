package handover

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Daemons are killed and stopped at any instant of a handover, the stopped ones for longer than the
// leases live. One of them has the mount then, or it is dead because the one that had it is. Nothing
// is written in another's time, and nothing stays locked.
func TestFaultsInHandover(t *testing.T) {
	lab.Over(t, testFaultsInHandover, lab.Local, lab.InLeases.ForLong())
}

func testFaultsInHandover(t *testing.T, on lab.Setup) {
	tr := history.New(t, on.NewService(t), "--wait", "-1", "--ttl", lab.ShortTTL.String())
	closeToPrograms(t, filepath.Join(tr.Dir, "a"))
	a, b := tr.Mount("a"), tr.Mount("b")
	tr.Load(a)
	tr.Work(b, 2)
	tr.GoesOn("before the faults")
	began := time.Now()
	a = upgrade(t, a)
	takes := time.Since(began)
	counts := make(map[string]int)
	for round, end := 0, time.Now().Add(longtest.For(t)); round < len(faults) || time.Now().Before(end); round++ {
		fault := faults[round%len(faults)]
		next := tr.Start("a", "--take-over")
		lab.Between(takes/2, takes) // before that it starts
		fault.strike(t, a, next)
		lab.Eventually(t, fault.name+": one of the daemons ends", func() bool { return ended(a) || ended(next) })
		if lab.FSType(a.Dir) != unix.FUSE_SUPER_MAGIC { // nobody answers: the old one has handed the mount on
			lab.Eventually(t, "the old daemon ends", func() bool { return ended(a) })
		}
		if ended(a) {
			lab.Eventually(t, "the new daemon has the mount, or gives up", func() bool {
				return ended(next) || next.Said("took the mount over") || strings.Contains(next.Log.String(), "msg=mounted ")
			})
		}
		switch {
		case !ended(a):
			counts[fault.name+": the old one goes on"]++
		case !ended(next) && next.Said("took the mount over"):
			counts[fault.name+": the new one has it"]++
			a = next
		case !fault.kills:
			t.Fatalf("%s: nobody has the mount; the old daemon:\n%s\nthe new one:\n%s", fault.name, a.Log, next.Log)
		default:
			counts[fault.name+": the mount is dead"]++
			for _, w := range tr.Writers {
				if w.Mount == "a" && !w.Ended {
					w.Kill()
					w.Ended = true
				}
			}
			if a = next; ended(next) {
				a = tr.Mount("a")
			}
			tr.Load(a)
		}
		tr.GoesOn(fmt.Sprintf("after %s in round %d", fault.name, round))
	}
	t.Log(counts)
	tr.Finish()
}

// closeToPrograms makes a bare mountpoint that nobody writes to while nothing is mounted there.
func closeToPrograms(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lab.Run(t, "chattr", "+i", dir)
	t.Cleanup(func() { lab.Run(t, "chattr", "-i", dir) })
}

func ended(m *lab.Mount) bool {
	select {
	case <-m.Done:
		return true
	default:
		return false
	}
}

type fault struct {
	name   string
	kills  bool
	strike func(t *testing.T, old, next *lab.Mount)
}

var faults = []fault{
	{"kill -9 of the old daemon", true, func(t *testing.T, old, _ *lab.Mount) { old.Kill() }},
	{"the old daemon stopped", false, func(t *testing.T, old, _ *lab.Mount) { stopFor(t, old) }},
	{"kill -9 of the new daemon", true, func(t *testing.T, _, next *lab.Mount) { next.Kill() }},
	{"the new daemon stopped", false, func(t *testing.T, _, next *lab.Mount) { stopFor(t, next) }},
}

// stopFor stops a daemon for longer than its lease lives.
func stopFor(t *testing.T, m *lab.Mount) {
	if ended(m) || unix.Kill(m.Cmd.Process.Pid, unix.SIGSTOP) != nil {
		return
	}
	time.Sleep(lab.ShortTTL + time.Duration(rand.N(int64(time.Second))))
	_ = m.Cmd.Process.Signal(unix.SIGCONT)
}
