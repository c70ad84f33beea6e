package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// requestsOf returns the requests that a program waits for a client of the volume
// has got by now. What is closed is flushed in the background, and does not count.
func requestsOf(t *testing.T, log string) (requests []string) {
	t.Helper()
	for _, r := range allRequests(t, log) {
		switch r[0] {
		case "LOOKUP", "GETATTR", "OPEN", "CREATE", "RENAME", "WRITE", "READ":
			requests = append(requests, r[0]+" "+r[1])
		}
	}
	return requests
}

// requestsByName returns how many of each a client of the volume has got by now.
func requestsByName(t *testing.T, log string) (counts map[string]int) {
	t.Helper()
	counts = make(map[string]int)
	for _, r := range allRequests(t, log) {
		counts[r[0]]++
	}
	return counts
}

// allRequests returns the name and the node of each that a client of the volume has got.
func allRequests(t *testing.T, log string) (requests [][2]string) {
	t.Helper()
	lines, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(lines)) {
		if f := strings.Fields(line); len(f) >= 4 && f[0] == "rx" {
			requests = append(requests, [2]string{f[2], strings.TrimSuffix(f[3], ":")})
		}
	}
	return requests
}

// What a view asks of a network volume beyond what its program would, when nobody else
// wants the file: no more than it does today. The least of several tries: what the kernel
// remembers for a second costs more on a slow machine.
func TestRequestsToTheVolume(t *testing.T) {
	t.Parallel()
	t.Run("of a client that believes names", func(t *testing.T) {
		requestsToTheVolume(t, lab.ClientConfig{}, map[string]int{"open to read": 2, "append": 2, "create": 2, "rename over a file": 3})
	})
	t.Run("of one that does not", func(t *testing.T) {
		requestsToTheVolume(t, lab.ClientConfig{Doubts: true}, map[string]int{"open to read": 2, "append": 2, "create": 2, "rename over a file": 7})
	})
}

// requestsToTheVolume fails if a view costs more requests than the bare volume, by more than
// most, however deep the file is.
func requestsToTheVolume(t *testing.T, config lab.ClientConfig, most map[string]int) {
	logs := t.TempDir()
	config.Requests = logs
	v := lab.NewVolumeOverClients(t, config)
	at := map[string]string{"bare": v.Caching("bare"), "a": v.Mount("a").Dir}
	prog := lab.NewAgent(t)
	create := func(path string) {
		prog.Must(lab.Call{Op: "close", FD: prog.Open(path, unix.O_WRONLY|unix.O_CREAT)})
	}
	files := 0 // made
	for depth, dir := range []string{"", "d", "d/e"} {
		if dir != "" {
			if err := os.Mkdir(v.InSource(dir), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		v.Write(filepath.Join(dir, "f"), "x")
		for _, c := range []struct {
			what   string
			before func(path func(string) string, try int) // not counted; may be nil
			do     func(path func(string) string, try int)
		}{
			{"stat", nil, func(path func(string) string, _ int) { prog.Must(lab.Call{Op: "mode", Path: path("f")}) }},
			{"open to read", nil, func(path func(string) string, _ int) {
				prog.Must(lab.Call{Op: "close", FD: prog.Open(path("f"), unix.O_RDONLY)})
			}},
			{"append", nil, func(path func(string) string, _ int) {
				fd := prog.Open(path("f"), unix.O_WRONLY|unix.O_APPEND)
				prog.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
				prog.Must(lab.Call{Op: "close", FD: fd})
			}},
			{"create", nil, func(path func(string) string, try int) { create(path(fmt.Sprint("new", try))) }},
			{"rename over a file", func(path func(string) string, try int) { create(path(fmt.Sprint("new", try))) }, func(path func(string) string, try int) {
				prog.Must(lab.Call{Op: "rename", Path: path(fmt.Sprint("new", try)), Path2: path("f")})
			}},
		} {
			least := make(map[string][]string)
			more := func() int { return len(least["a"]) - len(least["bare"]) - most[c.what] }
			for _, client := range []string{"bare", "a"} {
				log := filepath.Join(logs, "caching-"+client)
				path := func(name string) string { return filepath.Join(at[client], dir, name) }
				for try := 0; try < 6 || client == "a" && more() > 0 && try < 60; try++ {
					files++
					if c.before != nil {
						c.before(path, files)
					}
					prog.Must(lab.Call{Op: "mode", Path: path("f")}) // what a program knows
					before := len(requestsOf(t, log))
					c.do(path, files)
					if did := requestsOf(t, log)[before:]; try == 0 || len(did) < len(least[client]) {
						least[client] = did
					}
				}
			}
			t.Logf("%s, %d directories below the root: %d, on the bare volume %d\n\t%s\n\t%s", c.what, depth, len(least["a"]), len(least["bare"]),
				strings.Join(least["a"], ", "), strings.Join(least["bare"], ", "))
			if n := more(); n > 0 {
				t.Errorf("%s, %d directories below the root: %d requests too many", c.what, depth, n)
			}
		}
	}
}
