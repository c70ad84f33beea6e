package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// requestsOf returns how many requests that a program waits for a client of the volume
// has got by now. What is closed is flushed in the background, and does not count.
func requestsOf(t *testing.T, log string) (n int) {
	t.Helper()
	for what, count := range requestsByName(t, log) {
		switch what {
		case "LOOKUP", "GETATTR", "OPEN", "CREATE", "RENAME", "WRITE", "READ":
			n += count
		}
	}
	return n
}

// requestsByName returns how many of each a client of the volume has got by now.
func requestsByName(t *testing.T, log string) (counts map[string]int) {
	t.Helper()
	counts = make(map[string]int)
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		f := strings.Fields(line)
		if len(f) >= 3 && f[0] == "rx" {
			counts[f[2]]++
		}
	}
	return counts
}

// What a view asks of a network volume beyond what its program would, when nobody else
// wants the file: no more than it does today. The least of some tries, as what the
// kernel remembers for a second costs more on a machine that is slower than that.
func TestRequestsToTheVolume(t *testing.T) {
	t.Setenv(backingEnv, "caching")
	logs := t.TempDir()
	t.Setenv(requestsEnv, logs)
	v := newVolume(t)
	if len(v.clients) > 0 {
		t.Skip("counts what its own clients are asked")
	}
	v.inMemory()
	at := map[string]string{"bare": v.caching("bare"), "a": v.mount("a").dir}
	prog := newAgent(t)
	for depth, dir := range []string{"", "d", "d/e"} {
		if dir != "" {
			if err := os.Mkdir(v.inSource(dir), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		v.write(filepath.Join(dir, "f"), "x")
		for _, c := range []struct {
			what string
			do   func(path func(string) string, try int)
			more int // than on the bare volume
		}{
			{"stat", func(path func(string) string, _ int) { prog.must(call{Op: "mode", Path: path("f")}) }, 0},
			{"open to read", func(path func(string) string, _ int) {
				prog.must(call{Op: "close", FD: prog.open(path("f"), rdonly)})
			}, 2},
			{"append", func(path func(string) string, _ int) {
				fd := prog.open(path("f"), wronly|appends)
				prog.must(call{Op: "write", FD: fd, Data: "x"})
				prog.must(call{Op: "close", FD: fd})
			}, 4 + depth},
			{"create", func(path func(string) string, try int) {
				prog.must(call{Op: "close", FD: prog.open(path(fmt.Sprint("new", try)), wronly|create)})
			}, 6 + depth},
			{"rename over a file", func(path func(string) string, try int) {
				prog.must(call{Op: "rename", Path: path(fmt.Sprint("new", try)), Path2: path("f")})
			}, 13 + depth},
		} {
			const tries = 6
			least := make(map[string]int)
			for i, client := range []string{"bare", "a"} {
				log := filepath.Join(logs, "caching-"+client)
				for try := range tries {
					prog.must(call{Op: "mode", Path: filepath.Join(at[client], dir, "f")}) // what a program knows
					before := requestsOf(t, log)
					c.do(func(name string) string { return filepath.Join(at[client], dir, name) }, i*tries+try)
					if n := requestsOf(t, log) - before; try == 0 || n < least[client] {
						least[client] = n
					}
				}
			}
			t.Logf("%s, %d directories below the root: %d, on the bare volume %d", c.what, depth, least["a"], least["bare"])
			if more := least["a"] - least["bare"]; more > c.more {
				t.Errorf("%s, %d directories below the root: %d requests more than on the bare volume, want at most %d", c.what, depth, more, c.more)
			}
		}
	}
}
