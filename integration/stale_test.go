package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/longtest"
)

// churn creates, writes, renames, removes and links a few names of a directory. It
// returns how often it opened one, and how often what failed.
func churn(dir string, lasts time.Duration) (opens int, failed map[string]int) {
	rnd := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	name := func() string { return filepath.Join(dir, fmt.Sprint("f", rnd.IntN(20))) }
	failed = make(map[string]int)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		var what string
		var err error
		switch rnd.IntN(8) {
		case 0:
			what, err = "rename", unix.Rename(name(), name())
		case 1:
			what, err = "unlink", unix.Unlink(name())
		case 2:
			what, err = "link", unix.Link(name(), name())
		default:
			what = "open"
			flags := unix.O_WRONLY | unix.O_APPEND | unix.O_CLOEXEC
			if rnd.IntN(2) == 0 {
				flags |= unix.O_CREAT
			}
			opens++
			var fd int
			if fd, err = unix.Open(name(), flags, 0o644); err == nil {
				_, _ = unix.Write(fd, []byte("x"))
				err = unix.Close(fd)
			}
		}
		if err != nil {
			failed[what+" "+unix.ErrnoName(err.(unix.Errno))]++
		}
	}
	return opens, failed
}

// Programs on two views create, rename, remove and link a few names, all at once,
// and write what they open. ESTALE is between the view and its kernel: programs see
// it in less than one of a thousand opens.
func TestFewESTALE(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	lasts := 6 * time.Second
	if d := longtest.For(t); d > 0 {
		lasts = d
	}
	var pending []<-chan result
	for _, m := range []*mount{v.mount("a"), v.mount("b")} {
		for range 3 {
			pending = append(pending, newAgent(t).start(call{Op: "churn", Path: m.dir, N: int(lasts.Milliseconds())}))
		}
	}
	opens, failed := 0, make(map[string]int)
	for _, p := range pending {
		r := <-p
		opens += r.N
		for what, n := range r.Failed {
			failed[what] += n
		}
	}
	t.Logf("%d opens, ESTALE in %.2f %%: %v", opens, 100*float64(failed["open ESTALE"])/float64(opens), failed)
	// Few opens say little: a short run has some 300, of which one may see it by
	// chance. It was 14 to 18 of a thousand when the kernel looked before the wait.
	if seen := failed["open ESTALE"]; seen > 3+opens/1000 {
		t.Errorf("ESTALE in %d of %d opens", seen, opens)
	}
}
