package longtest

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSeeds(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		want uint64 // seeds of a minute each
	}{
		"every day":                 {"", 3},
		"a long run":                {"10m", 10},
		"one of fewer than all":     {"1m", 5},
		"one that is hardly longer": {"1ns", 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(Env, c.env)
			synctest.Test(t, func(t *testing.T) {
				n := uint64(0)
				for seed := range Seeds(t, 3, 5) {
					if seed != n {
						t.Errorf("seed %d, want %d", seed, n)
					}
					n++
					time.Sleep(time.Minute)
				}
				if n != c.want {
					t.Errorf("%d seeds, want %d", n, c.want)
				}
			})
		})
	}
}
