package integration

import (
	"os"
	"testing"
	"time"
)

// longEnv is a duration that tests of histories are to last. Without it they
// last as long as everyday's test runs bear.
const longEnv = "LOCKFS_TEST_LONG"

// long returns 0 unless the tests are to last.
func long(t *testing.T) time.Duration {
	t.Helper()
	if os.Getenv(longEnv) == "" {
		return 0
	}
	d, err := time.ParseDuration(os.Getenv(longEnv))
	if err != nil {
		t.Fatal(longEnv, ": ", err)
	}
	return d
}

// Several programs on each of three mounts open two files again and again, with
// and without waiting, and append, truncate and rename under their locks: what
// they see, what the files hold and what etcd has had are one history, in which
// the writers exclude each other. (docs/SEMANTICS.md, rules 1, 5, 6 and 20.)
func TestHistory(t *testing.T) {
	c := newService(t)
	for end := time.Now().Add(long(t)); ; {
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
