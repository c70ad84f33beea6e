package semantics

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// Files that are replaced and removed leave nothing in their directory, on any volume:
// no program has them open, and a view must not count as one.
func TestNothingIsLeftOver(t *testing.T) {
	lab.Over(t, testNothingIsLeftOver, lab.Local, lab.OverClients.ForLong(), lab.OnNetworkVolume)
}

func testNothingIsLeftOver(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	here, there := lab.NewAgent(t), lab.NewAgent(t)
	here.Must(lab.Call{Op: "mkdir", Path: a.Path("d"), Mode: 0o755})
	save := func(name, data string) {
		t.Helper()
		fd := here.Must(lab.Call{Op: "open", Path: a.Path("d/new"), Flags: os.O_CREATE | unix.O_WRONLY, Mode: 0o644})
		here.Must(lab.Call{Op: "write", FD: fd, Data: data})
		here.Must(lab.Call{Op: "close", FD: fd})
		here.Must(lab.Call{Op: "rename", Path: a.Path("d/new"), Path2: a.Path(name)})
	}
	const files = 5
	for i := range files {
		name := fmt.Sprintf("d/%d", i)
		for round := range 3 {
			data := fmt.Sprint("version ", round)
			save(name, data)
			here.Sees(a.Path(name), data)
			there.Sees(b.Path(name), data)
		}
	}
	entries, err := os.ReadDir(a.Path("d"))
	if err != nil || len(entries) != files {
		t.Fatalf("the directory has %v, %v, want %d files", entries, err, files)
	}
	for i := range files {
		here.Must(lab.Call{Op: "unlink", Path: a.Path(fmt.Sprintf("d/%d", i))})
	}
	here.Must(lab.Call{Op: "rmdir", Path: a.Path("d")})
}
