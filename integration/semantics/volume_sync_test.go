package semantics

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// syncs returns what the volume's server was asked by now; "sync" is how often it was told
// to have bytes on its disk. The test is skipped if the volume has no such counters.
func syncs(t *testing.T) (counts map[string]int) {
	t.Helper()
	if err := json.Unmarshal([]byte(lab.Fault(t, "syncs")), &counts); err != nil {
		t.Fatal(err)
	}
	return counts
}

// The volume's server itself is told to have on its disk what --sync says, and by what a
// program asks for: each write, what was written when the file is closed, or nothing
// beyond what the bare volume is told. (docs/SEMANTICS.md, rule 19.)
func TestSyncsOfTheServer(t *testing.T) { lab.Over(t, testSyncsOfTheServer, lab.OnNetworkVolume) }

func testSyncsOfTheServer(t *testing.T, on lab.Setup) {
	syncs(t) // or there are none
	const writes = 10
	// told is how often the server is told by programs that write, and when they close.
	told := func(t *testing.T, v *lab.Volume, dir string, flags int) (byWrites, byClose int) {
		t.Helper()
		p := lab.NewAgent(t)
		fd := p.Open(filepath.Join(dir, "f"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|flags)
		opened := syncs(t)
		for range writes {
			p.Must(lab.Call{Op: "write", FD: fd, Data: "line\n"})
		}
		written := syncs(t)
		p.Must(lab.Call{Op: "close", FD: fd})
		lab.Eventually(t, "the lock is given back", func() bool { return len(v.LS()) == 0 })
		closed := syncs(t)
		for _, name := range slices.Sorted(maps.Keys(closed)) {
			t.Logf("%s: %d by %d writes, %d by close", name, written[name]-opened[name], writes, closed[name]-written[name])
		}
		return written["sync"] - opened["sync"], closed["sync"] - written["sync"]
	}
	view := func(t *testing.T, sync string, flags int) (byWrites, byClose int) {
		t.Helper()
		v := on.NewVolume(t, "--sync", sync)
		return told(t, v, v.Mount("a").Dir, flags)
	}
	var bare int
	t.Run("bare", func(t *testing.T) {
		v := on.NewVolume(t)
		v.Mount("a")
		byWrites, byClose := told(t, v, v.Client("a"), 0)
		bare = byWrites + byClose
	})
	t.Run("always", func(t *testing.T) {
		if byWrites, _ := view(t, "always", 0); byWrites < writes {
			t.Errorf("%d for %d writes", byWrites, writes)
		}
	})
	t.Run("close", func(t *testing.T) {
		if byWrites, byClose := view(t, "close", 0); byWrites > 0 || byClose < 1 {
			t.Errorf("%d by the writes, %d by close, want none and one", byWrites, byClose)
		}
	})
	t.Run("never", func(t *testing.T) {
		if byWrites, byClose := view(t, "never", 0); byWrites+byClose > bare {
			t.Errorf("%d by the writes, %d by close, on the bare volume %d", byWrites, byClose, bare)
		}
	})
	for name, flag := range map[string]int{"O_DSYNC": unix.O_DSYNC, "O_SYNC": unix.O_SYNC} {
		t.Run(name, func(t *testing.T) {
			if byWrites, _ := view(t, "never", flag); byWrites < writes {
				t.Errorf("%d for %d writes", byWrites, writes)
			}
		})
	}
}
