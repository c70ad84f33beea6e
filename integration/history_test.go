package integration

import (
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
)

// Several programs on each of three mounts open two files again and again, with
// and without waiting, and append, truncate and rename under their locks: what
// they see, what the files hold and what etcd has had are one history, in which
// the writers exclude each other. (docs/SEMANTICS.md, rules 1, 5, 6 and 20.)
func TestHistory(t *testing.T) { over(t, testHistory, local, inLeases) }

func testHistory(t *testing.T, on setup) {
	c := on.newService(t)
	for end := time.Now().Add(longtest.For(t)); ; {
		tr := newTrial(t, c, "--wait", "-1")
		mounts := []*mount{tr.mount("a"), tr.mount("b"), tr.mount("c", "--wait", "1s")}
		for _, m := range mounts {
			tr.work(m, 3)
		}
		tr.goesOnFor(6 * time.Second)
		tr.finish()
		if t.Failed() || time.Now().After(end) {
			return
		}
		for _, m := range mounts {
			m.stop()
		}
	}
}
