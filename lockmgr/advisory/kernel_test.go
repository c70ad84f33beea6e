package advisory

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// bytesTried is how many bytes of the file random locks are about, and the rest of the file.
const bytesTried = 12

// Random calls are answered, and leave what the kernel leaves, on a file of its own.
func TestRangesAgainstTheKernel(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { compareRanges(t, rand.New(rand.NewPCG(seed, 1)), 300) })
	}
}

func FuzzRangesAgainstTheKernel(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { compareRanges(t, rand.New(rand.NewPCG(a, b)), 40) })
}

func compareRanges(t *testing.T, random *rand.Rand, steps int) {
	files := openTimes(t, 5) // an open file is an owner
	probe := files[4]
	var locks Locks
	for step := range steps {
		i := random.IntN(4)
		l := Lock{Owner: Owner{ID: uint64(i)}, Exclusive: random.IntN(2) == 0}
		l.Start = random.Uint64N(bytesTried)
		l.End = l.Start + random.Uint64N(bytesTried-l.Start)
		if random.IntN(8) == 0 {
			l.End = EOF
		}
		unlock := random.IntN(3) == 0
		what := fmt.Sprintf("step %d: owner %d, %d to %d, exclusive %v, unlock %v", step, i, l.Start, l.End, l.Exclusive, unlock)

		want := setRange(t, files[i], l, unlock)
		if unlock {
			locks.Clear(l.Owner, l.Start, l.End)
		} else if _, blocked := locks.Conflict(l); blocked != (want == unix.EAGAIN) {
			t.Fatalf("%s: blocked %v, the kernel says %v", what, blocked, want)
		} else if !blocked {
			locks.Set(l)
		}

		for at := range uint64(bytesTried + 1) {
			for _, exclusive := range []bool{false, true} {
				asked := Lock{Owner: Owner{ID: 4}, Start: at, End: at, Exclusive: exclusive}
				_, blocked := locks.Conflict(asked)
				found, ok := getRange(t, probe, asked)
				if ok != blocked {
					t.Fatalf("%s: byte %d, exclusive %v: blocked %v, the kernel says %v", what, at, exclusive, blocked, ok)
				}
				if ok && !slices.ContainsFunc(locks.All(), func(l Lock) bool {
					return l.Start == found.Start && l.End == found.End && l.Exclusive == found.Exclusive
				}) {
					t.Fatalf("%s: the kernel has %d to %d, exclusive %v: we have %v", what, found.Start, found.End, found.Exclusive, locks.All())
				}
			}
		}
	}
}

func openTimes(t *testing.T, n int) (files []int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	for range n {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		files = append(files, int(f.Fd()))
	}
	return files
}

func flockT(l Lock) *unix.Flock_t {
	f := &unix.Flock_t{Type: unix.F_RDLCK, Start: int64(l.Start), Len: int64(l.End - l.Start + 1)}
	if l.End == EOF {
		f.Len = 0
	}
	if l.Exclusive {
		f.Type = unix.F_WRLCK
	}
	return f
}

func setRange(t *testing.T, fd int, l Lock, unlock bool) error {
	t.Helper()
	f := flockT(l)
	if unlock {
		f.Type = unix.F_UNLCK
	}
	err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, f)
	if err != nil && err != unix.EAGAIN {
		t.Fatal(err)
	}
	return err
}

func getRange(t *testing.T, fd int, l Lock) (found Lock, ok bool) {
	t.Helper()
	f := flockT(l)
	if err := unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, f); err != nil {
		t.Fatal(err)
	}
	if f.Type == unix.F_UNLCK {
		return Lock{}, false
	}
	found = Lock{Start: uint64(f.Start), End: uint64(f.Start + f.Len - 1), Exclusive: f.Type == unix.F_WRLCK}
	if f.Len == 0 {
		found.End = EOF
	}
	return found, true
}
