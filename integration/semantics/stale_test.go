package semantics

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// Programs on two views create, rename, remove and link a few names, all at once,
// and write what they open. ESTALE is between the view and its kernel: programs see
// it in less than one of a thousand opens.
func TestFewESTALE(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	lasts := 6 * time.Second
	if d := longtest.For(t); d > 0 {
		lasts = d
	}
	var pending []<-chan lab.Result
	for _, m := range []*lab.Mount{v.Mount("a"), v.Mount("b")} {
		for range 3 {
			pending = append(pending, lab.NewAgent(t).Start(lab.Call{Op: "churn", Path: m.Dir, N: int(lasts.Milliseconds())}))
		}
	}
	opens, failed := tally(pending)
	t.Logf("%d opens, ESTALE in %.2f %%: %v", opens, 100*float64(failed["open ESTALE"])/float64(opens), failed)
	// Few opens say little: a short run has some 300, of which one may see it by
	// chance. It was 14 to 18 of a thousand when the kernel looked before the wait.
	if seen := failed["open ESTALE"]; seen > 3+opens/1000 {
		t.Errorf("ESTALE in %d of %d opens", seen, opens)
	}
}

// A file on a server is gone as soon as another client has saved it by rename. A client that has
// looked it up and opens it gets ESTALE. The kernel looks again once. A reader gets the file however often it is
// saved while it is opened. (docs/SEMANTICS.md, rule 15.)
func TestReaderBesideManySaves(t *testing.T) {
	lab.Over(t, testReaderBesideManySaves, lab.OverClients, lab.OverClientsThatDoubt)
}

func testReaderBesideManySaves(t *testing.T, on lab.Setup) {
	saves := t.TempDir()
	const versions = 5
	v := on.NewVolume(t)
	config := *v.Caches
	config.Saves = saves
	v.Caches = &config
	a := v.Mount("a")
	v.Write("f", "the first")
	p := lab.NewAgent(t)
	fd := -1
	lab.Eventually(t, "it is opened", func() bool {
		for i := range versions {
			if err := os.WriteFile(filepath.Join(saves, fmt.Sprint(i)), []byte(fmt.Sprint("version ", i)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		r := p.Do(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY})
		if r.Errno != 0 && !lab.Forgotten(r, began) {
			t.Fatalf("open: %v", r.Err())
		}
		fd = r.N
		return r.Errno == 0
	})
	if got, want := p.Do(lab.Call{Op: "pread", FD: fd, N: 100}), fmt.Sprint("version ", versions-1); got.Data != want {
		t.Errorf("read %q, %v; want %q", got.Data, got.Err(), want)
	}
	if size := p.Must(lab.Call{Op: "size", FD: fd}); size != len("version 0") {
		t.Errorf("fstat says %d bytes", size)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
	var open []string
	defer func() {
		if len(open) > 0 {
			t.Logf("still open: %q", open)
		}
	}()
	lab.Eventually(t, "no file of the volume stays open", func() bool {
		open = openFiles(t, a, "f")
		return len(open) == 0
	})
}

// openFiles returns the descriptors of a mount's process that are open to read or write and lead to
// a name of its volume, or led there.
func openFiles(t *testing.T, m *lab.Mount, name string) (open []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", m.Cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		path, _ := os.Readlink(filepath.Join(dir, fd.Name()))
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", m.Cmd.Process.Pid, fd.Name()))
		var pos, flags int
		if err != nil {
			continue
		}
		if _, err := fmt.Sscanf(string(info), "pos:\t%d\nflags:\t%o\n", &pos, &flags); err != nil {
			t.Fatal(err)
		}
		if filepath.Base(strings.TrimSuffix(path, " (deleted)")) == name && flags&unix.O_PATH == 0 {
			open = append(open, fmt.Sprintf("%s %s %#o", fd.Name(), path, flags))
		}
	}
	return open
}

// tally adds up what agents have done, and how often what of it failed.
func tally(pending []<-chan lab.Result) (done int, failed map[string]int) {
	failed = make(map[string]int)
	for _, p := range pending {
		r := <-p
		done += r.N
		for what, n := range r.Failed {
			failed[what] += n
		}
	}
	return done, failed
}

// A rename over a file and an unlink find the locks that they need, whoever opens the file
// and links it meanwhile; and no two opens wait for each other.
func TestSavesBesideLinksAndOpens(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "2m")
	v.Write("f", "")
	var pending []<-chan lab.Result
	for _, m := range []*lab.Mount{v.Mount("a"), v.Mount("b")} {
		pending = append(pending, lab.NewAgent(t).Start(lab.Call{Op: "saves", Path: m.Path("f"), N: 3000}))
	}
	calls, failed := tally(pending)
	t.Logf("%d calls, failed: %v", calls, failed)
	// Of an open EBUSY or ENOLCK would be of two that wait for each other until --wait ends.
	for _, what := range []string{"rename ESTALE", "unlink ESTALE", "open EBUSY", "open ENOLCK"} {
		if failed[what] > 0 {
			t.Errorf("%s: %d of %d calls", what, failed[what], calls)
		}
	}
}

// Programs on two views lock by such a file, all at once. A creation waits for the holder on
// the other mount, so that it rarely has to look again. EBUSY is left: the kernel keeps the
// directory for a creation, and a program that is about to make the file on this mount needs it.
func TestLockFilesThatAreRemoved(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	var pending []<-chan lab.Result
	for _, m := range []*lab.Mount{v.Mount("a"), v.Mount("b")} {
		for range 2 {
			pending = append(pending, lab.NewAgent(t).Start(lab.Call{Op: "lock files", Path: m.Path("f"), N: 6000}))
		}
	}
	opens, failed := tally(pending)
	t.Logf("%d opens, failed: %v", opens, failed)
	delete(failed, "open EBUSY")
	delete(failed, "open ESTALE late") // the machine is slow
	// It was one in 27 when a creation did not wait for the holder of a file that is there.
	if failed["open ESTALE"] <= 3+opens/100 {
		delete(failed, "open ESTALE")
	}
	if len(failed) > 0 {
		t.Errorf("%d opens, failed: %v", opens, failed)
	}
}
