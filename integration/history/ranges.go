package history

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// RangesFile is a file whose programs lock ranges of it by fcntl(2), and keep it open meanwhile.
const RangesFile = "ranges"

// RangesRule has the policy leave the opens of RangesFile alone.
const RangesRule = RangesFile + " nolock flock=cluster"

// The file has units of bytes, each with a number.
const (
	units    = 4
	unitSize = 16
)

const (
	opened    kind = "open without a lock"
	locked    kind = "lock"   // of units, with or without waiting
	unlocked  kind = "unlock" // of units
	asked     kind = "getlk"  // whether the units could be locked; Free is the answer
	readUnit  kind = "look"
	WroteUnit kind = "put" // a number that nobody else writes
)

// Units are some of the file's.
type Units struct{ From, To int } // the first and the last

func (u Units) meets(o Units) bool { return u.From <= o.To && o.From <= u.To }

// WorkOnRanges starts n programs on a mount that lock ranges of RangesFile, and count in them.
func (tr *Trial) WorkOnRanges(m *lab.Mount, n int) {
	tr.T.Helper()
	if _, err := os.Stat(tr.InSource(RangesFile)); err != nil {
		tr.Write(RangesFile, strings.Repeat(numbered(0), units))
	}
	for range n {
		tr.start(m, writerConfig{Ranges: true, Pause: 5 * time.Millisecond, Most: 30})
	}
}

func numbered(n int64) string { return fmt.Sprintf("%0*d\n", unitSize-1, n) }

// ranges opens the file, locks and unlocks for a while, and closes it. It stops at the first call
// that fails for another reason than somebody else's lock.
func (w *writer) ranges() {
	w.file = RangesFile
	fd, ofd := -1, w.rand.IntN(3) == 0
	if !w.call(Op{Kind: opened, OFD: ofd}, func(*Op) (err error) {
		fd, err = unix.Open(filepath.Join(w.Dir, RangesFile), unix.O_RDWR|unix.O_CLOEXEC, 0)
		return err
	}) {
		return
	}
	r := rangeWriter{writer: w, fd: fd, ofd: ofd}
	for n := 1 + w.rand.IntN(w.Most); n > 0 && !w.stop.Load() && r.step(); n-- {
		w.pause()
	}
	w.call(Op{Kind: Closed}, func(*Op) error { return unix.Close(fd) })
}

// rangeWriter is one open of the file.
type rangeWriter struct {
	*writer
	fd  int
	ofd bool // the locks are the open file's, and not the process's
}

func (r *rangeWriter) some() Units {
	from := r.rand.IntN(units)
	return Units{from, from + r.rand.IntN(units-from)}
}

// step does one thing, and reports whether the file is still good.
func (r *rangeWriter) step() bool {
	switch n := r.rand.IntN(10); {
	case n < 6:
		return r.lock(Op{Kind: locked, Units: r.some(), Exclusive: r.rand.IntN(2) == 0, Try: r.rand.IntN(2) == 0})
	case n < 9:
		return r.unlock(r.some())
	default:
		return r.call(Op{Kind: asked, Units: r.some(), Exclusive: r.rand.IntN(2) == 0}, func(o *Op) error {
			l := o.flock()
			err := unix.FcntlFlock(uintptr(r.fd), r.command(unix.F_GETLK, unix.F_OFD_GETLK), &l)
			o.Free = l.Type == unix.F_UNLCK
			return err
		})
	}
}

func (r *rangeWriter) command(process, file int) int {
	if r.ofd {
		return file
	}
	return process
}

// flock is what fcntl(2) is given.
func (o *Op) flock() unix.Flock_t {
	l := unix.Flock_t{Type: unix.F_RDLCK, Start: int64(o.Units.From * unitSize), Len: int64((o.Units.To - o.Units.From + 1) * unitSize)}
	if o.Exclusive {
		l.Type = unix.F_WRLCK
	}
	return l
}

// lock locks units, reads them, and counts in one of them if it may.
func (r *rangeWriter) lock(o Op) bool {
	command := r.command(unix.F_SETLKW, unix.F_OFD_SETLKW)
	if o.Try {
		command = r.command(unix.F_SETLK, unix.F_OFD_SETLK)
	}
	var failed error
	if !r.call(o, func(o *Op) error {
		l := o.flock()
		failed = unix.FcntlFlock(uintptr(r.fd), command, &l)
		return failed
	}) {
		switch failed {
		case unix.EAGAIN, unix.ENOLCK:
			return true
		case unix.EDEADLK: // somebody waits for what it has
			return r.unlock(Units{0, units - 1})
		}
		return false
	}
	for at := o.Units.From; at <= o.Units.To; at++ {
		if !r.call(Op{Kind: readUnit, Units: Units{at, at}}, func(o *Op) (err error) {
			var b [unitSize]byte
			if _, err = unix.Pread(r.fd, b[:], int64(at*unitSize)); err == nil {
				o.Number, err = strconv.ParseInt(string(b[:unitSize-1]), 10, 64)
			}
			return err
		}) {
			return false
		}
	}
	if !o.Exclusive {
		return true
	}
	at := o.Units.From + r.rand.IntN(o.Units.To-o.Units.From+1)
	number := int64(r.Seed)<<32 + int64(r.ops)
	return r.call(Op{Kind: WroteUnit, Units: Units{at, at}, Number: number}, func(*Op) error {
		n, err := unix.Pwrite(r.fd, []byte(numbered(number)), int64(at*unitSize))
		if err == nil && n != unitSize {
			return fmt.Errorf("%d bytes of %d written", n, number)
		}
		return err
	})
}

func (r *rangeWriter) unlock(u Units) bool {
	return r.call(Op{Kind: unlocked, Units: u}, func(o *Op) error {
		l := o.flock()
		l.Type = unix.F_UNLCK
		return unix.FcntlFlock(uintptr(r.fd), r.command(unix.F_SETLK, unix.F_OFD_SETLK), &l)
	})
}
