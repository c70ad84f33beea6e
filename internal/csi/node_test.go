package csi

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestFigures(t *testing.T) {
	ext4 := unix.Statfs_t{Frsize: 4096, Blocks: 100, Bfree: 50, Bavail: 40, Files: 10, Ffree: 4}
	ceph := unix.Statfs_t{Frsize: 4096, Blocks: 100, Bfree: 50, Bavail: 40, Files: 2, Ffree: ^uint64(0)}
	for _, c := range []struct {
		st    unix.Statfs_t
		units int
	}{{ext4, 2}, {ceph, 1}} {
		got := figures(c.st)
		if len(got.Usage) != c.units {
			t.Errorf("%+v: %v", c.st, got.Usage)
		}
		for _, u := range got.Usage {
			if u.Available < 0 || u.Used < 0 || u.Used > u.Total {
				t.Errorf("%+v: %v", c.st, u)
			}
		}
	}
}
