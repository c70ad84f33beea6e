package faults

import (
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Three of five mounts work in a directory each, which is delegated to them, and on a file, whose
// lock they keep. Others visit both, also by another name of a file in the directory, and rename a
// directory in it, as its own programs do. The delegates are frozen, killed and cut off.
// (docs/SEMANTICS.md, rule 33.)
func TestDelegatesUnderFaults(t *testing.T) {
	lab.Over(t, testDelegatesUnderFaults, lab.Local.ForLong(), lab.InLeases.Alone().ForLong())
}

func testDelegatesUnderFaults(t *testing.T, on lab.Setup) {
	end := time.Now().Add(longtest.For(t))
	c := on.NewService(t)
	for time.Now().Before(end) && !t.Failed() {
		t.Run("", func(t *testing.T) {
			tr := history.New(t, c, append(on.Flags, "--wait", "-1", "--ttl", "4s", "--suspend-wait", "2s")...)
			wire := lab.NewWire(t, c)
			d, e := tr.Mount("d"), tr.Mount("e")
			flags := [][]string{{wire.Flag}, nil, nil}
			delegates := make([]*lab.Mount, 3)
			work := func(m, visitor *lab.Mount) {
				tr.WorkAlone(m, visitor)
				tr.WorkBelow(m, visitor)
				tr.WorkByTwoNames(m, visitor)
				tr.Shift(m, m, 300*time.Millisecond)
			}
			for i, name := range []string{"a", "b", "c"} {
				delegates[i] = tr.Mount(name, flags[i]...)
				work(delegates[i], d)
			}
			tr.Shift(e, delegates[0], 2*time.Second)
			tr.GoesOn("before the faults")
			for range 4 {
				i := rand.IntN(len(delegates))
				m := delegates[i]
				faults := []string{"frozen", "killed"}
				if i == 0 {
					faults = []string{"frozen", "killed", "refused", "silent", "replies lost"}
				}
				fault := faults[rand.IntN(len(faults))]
				t.Log(m.Name, fault)
				switch fault {
				case "frozen":
					// Not in the middle of a write: see what is not promised.
					for _, w := range writersOn(tr, m) {
						lab.Freeze(t, w.Cmd.Process.Pid)
					}
					lab.Freeze(t, m.Cmd.Process.Pid)
					thawMount(tr, m)
					lab.Between(0, 8*time.Second)
					if err := m.Cmd.Process.Signal(unix.SIGCONT); err != nil {
						t.Fatal(err)
					}
				case "killed":
					m.Kill()
					for _, w := range writersOn(tr, m) {
						w.Kill()
						w.Ended = true
					}
					delegates[i] = tr.Mount(m.Name, flags[i]...)
					work(delegates[i], nil)
				default:
					s := severances[fault]
					s.sever(wire)
					lab.Between(0, 8*time.Second)
					s.mend(wire)
				}
				tr.GoesOn("after: " + m.Name + " " + fault)
			}
			tr.Finish()
		})
	}
}
