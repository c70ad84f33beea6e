// Package longtest says how long the tests go on that repeat something: a moment in 'make test',
// and in 'make test-long' as long as $LOCKFS_TEST_LONG says, each.
package longtest

import (
	"iter"
	"os"
	"testing"
	"time"
)

// Env is a duration, such as 2m. Unset or empty, tests go on for a moment.
const Env = "LOCKFS_TEST_LONG"

// For returns that duration, 0 without one.
func For(t testing.TB) time.Duration {
	t.Helper()
	if os.Getenv(Env) == "" {
		return 0
	}
	d, err := time.ParseDuration(os.Getenv(Env))
	if err != nil || d <= 0 {
		t.Fatalf("%s is no duration above 0: %q", Env, os.Getenv(Env))
	}
	return d
}

// Only skips a test that 'make test' leaves out, and says so.
func Only(t testing.TB) {
	t.Helper()
	if For(t) == 0 {
		t.Skip("runs with ", Env, ": make test-long")
	}
}

// Seeds yields the numbers from 0, few of them. In a long run it yields many, and
// goes on until the time is over.
func Seeds(t testing.TB, few, many uint64) iter.Seq[uint64] {
	t.Helper()
	d := For(t)
	return func(yield func(uint64) bool) {
		end := time.Now().Add(d)
		for i := uint64(0); i < few || d > 0 && (i < many || time.Now().Before(end)); i++ {
			if !yield(i) {
				return
			}
		}
	}
}
