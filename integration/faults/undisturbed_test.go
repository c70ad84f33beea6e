package faults

import (
	"testing"
	"time"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Several programs on each of three mounts open two files again and again, with
// and without waiting, and append, truncate and rename under their locks: what
// they see, what the files hold and what etcd has had are one history, in which
// the writers exclude each other. (docs/SEMANTICS.md, rules 1, 5, 6 and 20.)
func TestHistory(t *testing.T) {
	lab.Over(t, testHistory, lab.Local, lab.Releasing, lab.InLeases.Alone())
}

func testHistory(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for end := time.Now().Add(longtest.For(t)); ; {
		tr := history.New(t, c, append(on.Flags, "--wait", "-1")...)
		mounts := []*lab.Mount{tr.Mount("a"), tr.Mount("b"), tr.Mount("c", "--wait", "1s")}
		for _, m := range mounts {
			tr.Work(m, 3)
		}
		tr.WorkAlone(mounts[0], mounts[1])
		tr.WorkBelow(mounts[1], mounts[2])
		tr.GoesOnFor(6 * time.Second)
		tr.Finish()
		if t.Failed() || time.Now().After(end) {
			return
		}
		for _, m := range mounts {
			m.Stop()
		}
	}
}
