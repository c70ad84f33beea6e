package integration

import (
	"fmt"
	"os"
	"testing"
)

// Files that are replaced and removed leave nothing in their directory, on any volume:
// no program has them open, and a view must not count as one.
func TestNothingIsLeftOver(t *testing.T) {
	over(t, testNothingIsLeftOver, local, overClients.forLong(), onNetworkVolume)
}

func testNothingIsLeftOver(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	here, there := newAgent(t), newAgent(t)
	here.must(call{Op: "mkdir", Path: a.path("d"), Mode: 0o755})
	save := func(name, data string) {
		t.Helper()
		fd := here.must(call{Op: "open", Path: a.path("d/new"), Flags: os.O_CREATE | wronly, Mode: 0o644})
		here.must(call{Op: "write", FD: fd, Data: data})
		here.must(call{Op: "close", FD: fd})
		here.must(call{Op: "rename", Path: a.path("d/new"), Path2: a.path(name)})
	}
	const files = 5
	for i := range files {
		name := fmt.Sprintf("d/%d", i)
		for round := range 3 {
			data := fmt.Sprint("version ", round)
			save(name, data)
			here.sees(a.path(name), data)
			there.sees(b.path(name), data)
		}
	}
	entries, err := os.ReadDir(a.path("d"))
	if err != nil || len(entries) != files {
		t.Fatalf("the directory has %v, %v, want %d files", entries, err, files)
	}
	for i := range files {
		here.must(call{Op: "unlink", Path: a.path(fmt.Sprintf("d/%d", i))})
	}
	here.must(call{Op: "rmdir", Path: a.path("d")})
}
