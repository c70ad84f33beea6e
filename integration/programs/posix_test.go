package programs

import (
	"maps"
	"os"
	"slices"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"

	"github.com/lockfs/lockfs/integration/lab"
)

// What go-fuse's suite asks of a POSIX file system and ext4 passes.
func TestPosixSuite(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	skipped := map[string]string{
		"FdLeak":              "counts the descriptors of the process, to which tests beside it add: TestPosixFdLeak",
		"FcntlFlockLocksFile": "wants a process to be refused by its own lock; ext4 fails it as well",
		"OpenSymlinkRace":     "half a minute under the race detector; see TestSwappedDirectory",
	}
	for _, name := range slices.Sorted(maps.Keys(posixtest.All)) {
		t.Run(name, func(t *testing.T) {
			if why := skipped[name]; why != "" {
				t.Skip(why)
			}
			dir, err := os.MkdirTemp(a.Dir, "t")
			if err != nil {
				t.Fatal(err)
			}
			posixtest.All[name](t, dir)
		})
	}
}

func TestPosixFdLeak(t *testing.T) { // no other test runs beside it
	posixtest.FdLeak(t, lab.NewVolume(t).Mount("a").Dir)
}
