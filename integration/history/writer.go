package history

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A writer is a program that opens files for append, again and again, writes
// records that carry the fencing token of its lock, and reports each of its
// system calls.

// writerEnv makes the test binary a writer.
const writerEnv = "LOCKFS_TEST_WRITER"

// Writer has the test binary be a writer.
var Writer = lab.Role{Env: writerEnv, Serve: serveWriter}

// writerConfig is the value of writerEnv.
type writerConfig struct {
	Name  string
	Dir   string // the view
	Files []string
	Seed  uint64
	Pause time.Duration // the longest between two of its calls
	Most  int           // records under one lock; 0: until it is told to let go
	Other string        // the other name of its only file, which it does not rename
	Moves string        // instead: it renames this directory away and back

	Ranges bool // instead: it locks ranges of RangesFile; Most: the most calls of one open
}

// kind is what a system call is to the files' history.
type kind string

const (
	Acquired kind = "open"  // for write, and so the acquisition of the lock
	readTok  kind = "token" // what the fencing token is said to be
	readLast kind = "read"  // the last record of the file
	Wrote    kind = "write" // of one record
	cut      kind = "cut"   // truncation that takes back the last record
	moved    kind = "move"  // of the file to an archive; its name is free then
	Closed   kind = "close"
	shifted  kind = "shift" // of the directory File, away or back
)

// Op is one system call of a writer.
type Op struct {
	Kind  kind
	N     int    // of the writer's calls
	Hold  string // its open, unique: writer.number
	File  string
	Try   bool  // open: it does not wait
	Token int64 // read by token, and written by write

	// Of RangesFile.
	Units     Units
	Exclusive bool
	Number    int64 // read or written
	Free      bool
	OFD       bool // open: its locks are the open file's, and not the process's

	Record string // write: the record; read: the last one of the file; cut: the one taken back

	Call, Return int64 // CLOCK_MONOTONIC; Return is 0 while it has not returned
	Errno        syscall.Errno

	Writer, Mount string `json:"-"` // filled in when records are collected
	PID           int    `json:"-"`
}

func (o Op) ok() bool { return o.Return != 0 && o.Errno == 0 }

func recordOf(token int64, hold string, seq int) string {
	return fmt.Sprintf("%d %s %d", token, hold, seq)
}

func Monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// writer is the state of the program.
type writer struct {
	writerConfig
	rand *rand.Rand
	out  *json.Encoder
	ops  int
	hold string
	file string

	stop, letGo atomic.Bool
}

// serveWriter works until its stdin ends, and then closes what it has open. A
// byte there tells it to let go of the file that it has.
func serveWriter() {
	runtime.LockOSThread() // lockfs knows callers by their threads
	w := &writer{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal([]byte(os.Getenv(writerEnv)), &w.writerConfig); err != nil {
		fmt.Fprintln(os.Stderr, "writer:", err)
		os.Exit(1)
	}
	w.rand = rand.New(rand.NewPCG(w.Seed, 1))
	go func() {
		for b := make([]byte, 1); ; w.letGo.Store(true) {
			if _, err := os.Stdin.Read(b); err != nil {
				w.stop.Store(true)
				return
			}
		}
	}()
	for n := 1; !w.stop.Load(); n++ {
		w.hold = fmt.Sprintf("%s.%d", w.Name, n)
		if w.Moves != "" {
			w.shift()
			w.pause()
			continue
		}
		if w.Ranges {
			w.ranges()
			w.pause()
			continue
		}
		w.file = w.Files[w.rand.IntN(len(w.Files))]
		w.once()
		w.pause()
	}
}

func (w *writer) pause() { time.Sleep(time.Duration(w.rand.Int64N(int64(w.Pause)))) }

// call makes one system call, and reports that it begins and how it ends.
func (w *writer) call(o Op, do func(o *Op) error) bool {
	o.N, o.Hold, o.File = w.ops, w.hold, w.file
	w.ops++
	o.Call = Monotonic()
	w.report(o)
	err := do(&o)
	o.Return = Monotonic()
	if err != nil {
		errno, ok := err.(syscall.Errno)
		if !ok {
			fmt.Fprintln(os.Stderr, "writer:", err)
			os.Exit(1)
		}
		o.Errno = errno
	}
	w.report(o)
	return err == nil
}

func (w *writer) report(o Op) {
	if err := w.out.Encode(o); err != nil {
		os.Exit(0) // nobody listens
	}
}

// away is what the name of a directory gets that is renamed away.
const away = "-away"

// shiftedTo is the name of a file while its directory is away.
func shiftedTo(file string) string {
	dir, name := filepath.Split(file)
	return strings.TrimSuffix(dir, "/") + away + "/" + name
}

// shift renames the directory away for a moment. It does not end before the directory is back.
func (w *writer) shift() {
	w.file = w.Moves
	there, gone := filepath.Join(w.Dir, w.Moves), filepath.Join(w.Dir, w.Moves+away)
	rename := func(from, to string) bool {
		return w.call(Op{Kind: shifted}, func(*Op) error { return unix.Rename(from, to) })
	}
	if _, err := os.Stat(gone); err != nil && !rename(there, gone) {
		return
	}
	for !rename(gone, there) {
		if _, err := os.Stat(there); err == nil {
			return // a call that failed has done it
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// once opens a file, works on it and closes it.
func (w *writer) once() {
	path := filepath.Join(w.Dir, w.file)
	flags := unix.O_RDWR | unix.O_CREAT | unix.O_APPEND | unix.O_CLOEXEC
	if w.Other != "" {
		path = filepath.Join(w.Dir, []string{w.file, w.Other}[w.rand.IntN(2)])
		flags &^= unix.O_CREAT
	}
	try := w.rand.IntN(4) == 0
	if try {
		flags |= unix.O_NONBLOCK
	}
	fd := -1
	if !w.call(Op{Kind: Acquired, Try: try}, func(*Op) (err error) {
		fd, err = unix.Open(path, flags, 0o644)
		return err
	}) {
		return
	}
	w.letGo.Store(false)
	w.work(fd, path)
	w.call(Op{Kind: Closed}, func(*Op) error { return unix.Close(fd) })
}

// work stops at the first call that fails.
func (w *writer) work(fd int, path string) {
	var token int64
	if !w.call(Op{Kind: readTok}, func(o *Op) (err error) {
		buf := make([]byte, 64)
		n, err := unix.Fgetxattr(fd, "user.lockfs.token", buf)
		if err != nil {
			return err
		}
		token, err = strconv.ParseInt(string(buf[:n]), 10, 64)
		o.Token = token
		return err
	}) {
		return
	}
	if !w.call(Op{Kind: readLast}, func(o *Op) (err error) { o.Record, err = lastRecord(fd); return err }) {
		return
	}
	most, n := 0, 0
	if w.Most > 0 {
		most = 1 + w.rand.IntN(w.Most)
	}
	for ; n < most || most == 0 && !w.letGo.Load() && !w.stop.Load(); n++ {
		w.pause()
		if !w.write(fd, token, n) {
			return
		}
	}
	if w.Other == "" && w.rand.IntN(3) == 0 {
		w.call(Op{Kind: moved, Token: token}, func(*Op) error { return unix.Rename(path, path+"."+w.hold) })
	} else {
		size, err := size(fd)
		if err != nil || !w.write(fd, token, n) {
			return
		}
		w.call(Op{Kind: cut, Token: token, Record: recordOf(token, w.hold, n)}, func(*Op) error { return unix.Ftruncate(fd, size) })
	}
}

func (w *writer) write(fd int, token int64, seq int) bool {
	r := recordOf(token, w.hold, seq)
	return w.call(Op{Kind: Wrote, Token: token, Record: r}, func(*Op) error {
		n, err := unix.Write(fd, []byte(r+"\n"))
		if err == nil && n != len(r)+1 {
			return fmt.Errorf("%d bytes of %q written", n, r)
		}
		return err
	})
}

// size asks the file system, whatever the kernel believes.
func size(fd int) (int64, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &st)
	return int64(st.Size), err
}

// lastRecord is "" for an empty file, and what there is of a torn one.
func lastRecord(fd int) (string, error) {
	end, err := size(fd)
	if err != nil {
		return "", err
	}
	buf := make([]byte, 256)
	n, err := unix.Pread(fd, buf, max(0, end-int64(len(buf))))
	if err != nil {
		return "", err
	}
	lines := strings.Split(strings.TrimSuffix(string(buf[:n]), "\n"), "\n")
	return lines[len(lines)-1], nil
}
