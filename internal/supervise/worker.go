package supervise

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
)

// variable tells a program that it is a worker, and what it needs to know.
const variable = "LOCKFS_WORKER"

// The worker's first descriptors. The former workers' follow, the oldest first: journal and shadow.
const (
	journalFD = 3 + iota
	controlFD
	firstFormerFD
)

// The words that a worker says to its supervisor, one a line.
const (
	sayShadow = "shadow" // and its pid
	sayForgot = "forgot" // and the mark of a part: what former workers have left of it does not count any more
	sayFree   = "free"   // the former workers are not needed any more
	sayEnd    = "end"    // it is about to end by itself
)

// start is the value of variable.
type start struct {
	Formers int
	Forgot  [][]string // marks of parts, by former worker
	Deaths  int        // of workers so far
	InARow  int        // of those that came soon after each other
	Last    string     // how the last one died
}

// Worker is this process, if it has a supervisor.
type Worker struct {
	// Deaths is how many workers have died before, and InARow how many of them soon after their
	// starts, one after the other.
	Deaths, InARow int
	// LastDeath says how the last one has died.
	LastDeath string

	journal *os.File
	control *os.File
	shadow  int // pid; 0: there is none

	writing func() (*journal.Journal, error) // once

	mu      sync.Mutex
	formers []former           // GUARDED_BY(mu)
	left    map[string]*Former // GUARDED_BY(mu); by part; nil: not read yet
	failed  error              // GUARDED_BY(mu); what could not be read
}

// former is a worker that has died, with its shadow.
type former struct {
	journal *os.File
	shadow  int      // pidfd
	forgot  []string // marks of parts that do not count
}

// mark is a word that stands for a part.
func mark(part string) string {
	sum := sha256.Sum256([]byte(part))
	return hex.EncodeToString(sum[:8])
}

var self *Worker

// init makes the shadow while the process is small.
func init() {
	value, ok := os.LookupEnv(variable)
	if !ok {
		return
	}
	os.Unsetenv(variable)
	_ = os.WriteFile("/proc/self/comm", []byte(filepath.Base(os.Args[0])), 0) // it was started as /proc/self/exe
	var s start
	if json.Unmarshal([]byte(value), &s) != nil || s.Formers < 0 || len(s.Forgot) != s.Formers {
		return
	}
	w := &Worker{Deaths: s.Deaths, InARow: s.InARow, LastDeath: s.Last, journal: inherited(journalFD, "journal"), control: inherited(controlFD, "supervisor")}
	w.writing = sync.OnceValues(func() (*journal.Journal, error) { return journal.New(w.journal) })
	for n := range s.Formers {
		at := firstFormerFD + 2*n
		unix.CloseOnExec(at + 1)
		w.formers = append(w.formers, former{inherited(at, "former journal"), at + 1, s.Forgot[n]})
	}
	pid, err := newShadow()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lockfs: the worker has no shadow: if it dies, programs lose their open files:", err)
	} else {
		w.shadow = pid
		w.say(sayShadow, strconv.Itoa(pid))
	}
	self = w
}

func inherited(fd int, name string) *os.File {
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name)
}

// Self returns this process as a worker; nil: it has no supervisor.
func Self() *Worker { return self }

// End tells the supervisor that this process is about to end by itself, and is not to be replaced.
func End() {
	if self != nil {
		self.say(sayEnd)
	}
}

// say ignores errors: a worker goes on when its supervisor was killed.
func (w *Worker) say(words ...string) {
	line := ""
	for _, word := range words {
		line += word + " "
	}
	_, _ = w.control.WriteString(line + "\n")
}

// Journal is what this worker writes.
func (w *Worker) Journal() (*journal.Journal, error) { return w.writing() }

// Record records the text of a file that this worker goes by, in place of the former one.
func (w *Worker) Record(path, text string) {
	if w == nil {
		return
	}
	if j, err := w.writing(); err == nil {
		j.Text(path, text)
	}
}

// ReadFile returns the text of a file that the process is to go by, and records it. After a death it is
// what the former worker went by: the file may hold a mistake by now, or what is meant for the next
// start.
func (w *Worker) ReadFile(path string) (text string, err error) {
	text, ok := w.recorded(path)
	if !ok {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		text = string(b)
	}
	w.Record(path, text)
	return text, nil
}

// recorded returns what the last worker that has recorded a file's text went by.
func (w *Worker) recorded(path string) (text string, ok bool) {
	if w == nil {
		return "", false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range slices.Backward(w.formers) { // the newest first
		texts, err := journal.Texts(f.journal)
		if err != nil {
			continue // Former says so
		}
		if text, ok = texts[path]; ok {
			break
		}
	}
	return text, ok
}

// Check returns why the next worker could not take anything over from this one.
func (w *Worker) Check() error {
	fd, err := unix.PidfdOpen(w.shadow, 0)
	if err != nil {
		return fmt.Errorf("the worker's shadow: %w", err)
	}
	defer unix.Close(fd)
	got, err := unix.PidfdGetfd(fd, journalFD, 0)
	if err != nil {
		return fmt.Errorf("the descriptors of the worker's shadow (it takes CAP_SYS_PTRACE): %w", err)
	}
	return unix.Close(got)
}

// Former is what a worker that has died leaves of a part of the journal.
type Former struct {
	Records *journal.Records

	shadow int
}

// Former returns what the last worker that had a part complete has left of it, until Forget; nil:
// nothing. The error says what could not be read.
func (w *Worker) Former(part string) (*Former, error) {
	if w == nil {
		return nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left == nil {
		w.failed = w.read()
	}
	return w.left[part], w.failed
}

// read reads the journals of all former workers. w.mu is held.
func (w *Worker) read() (failed error) {
	w.left = make(map[string]*Former)
	for _, f := range w.formers { // the newest last
		parts, err := journal.Read(f.journal)
		failed = errors.Join(failed, err)
		for name, r := range parts {
			if !slices.Contains(f.forgot, mark(name)) {
				w.left[name] = &Former{r, f.shadow}
			}
		}
	}
	time.AfterFunc(keepTime, func() {
		w.mu.Lock()
		w.left = make(map[string]*Former)
		w.mu.Unlock()
		w.free()
	})
	return failed
}

// keepTime bounds how long the former workers' descriptors stay open. Nobody may want a part any more,
// or the lock service may be away: then programs whose calls are under way cannot be killed. It is
// longer than a lease lasts.
const keepTime = 30 * time.Second

// Forget drops what former workers have left of a part, also for the workers that follow: this one has
// the part, and another daemon may get it from this one. After the last part it waits until the
// descriptors of former workers are closed.
func (w *Worker) Forget(part string) {
	if w == nil {
		return
	}
	w.mu.Lock()
	_, had := w.left[part]
	delete(w.left, part)
	last := had && len(w.left) == 0
	w.mu.Unlock()
	if had {
		w.say(sayForgot, mark(part))
	}
	if last {
		w.free()
	}
}

// Only forgets all parts but those that are still wanted.
func (w *Worker) Only(wanted func(part string) bool) {
	if w == nil {
		return
	}
	_, _ = w.Former("") // it reads them
	w.mu.Lock()
	var others []string
	for part := range w.left {
		if !wanted(part) {
			others = append(others, part)
		}
	}
	w.mu.Unlock()
	for _, part := range others {
		w.Forget(part)
	}
}

// Get returns a duplicate of a descriptor that the dead worker had, by its number.
func (f *Former) Get(fd int) (int, error) {
	got, err := unix.PidfdGetfd(f.shadow, fd, 0)
	if err != nil {
		return -1, fmt.Errorf("descriptor %d of the former worker: %w", fd, err)
	}
	return got, nil // close-on-exec
}

// free lets go of all that former workers have left, and returns when their descriptors are closed.
func (w *Worker) free() {
	w.mu.Lock()
	formers := w.formers
	w.formers = nil
	w.mu.Unlock()
	if len(formers) == 0 {
		return
	}
	w.say(sayFree)
	for _, f := range formers {
		// When it has ended, nobody has its descriptors.
		_, _ = ignoringEINTR(func() (int, error) {
			return unix.Poll([]unix.PollFd{{Fd: int32(f.shadow), Events: unix.POLLIN}}, freeTime)
		})
		f.journal.Close()
		unix.Close(f.shadow)
	}
}

// freeTime bounds the wait for the end of a shadow, in milliseconds: it may be closing files of a
// volume that does not answer.
const freeTime = 5000

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); err != unix.EINTR {
			return n, err
		}
	}
}

// shadowName is what ps shows.
var shadowName = [16]byte{'l', 'o', 'c', 'k', 'f', 's', '-', 's', 'h', 'a', 'd', 'o', 'w'}

// newShadow makes a child of the supervisor that shares this process's table of descriptors, and
// only waits. It ends with the supervisor.
func newShadow() (pid int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A signal's handler must not run in the shadow: it is Go's, and the shadow is one bare thread.
	all, old := ^uint64(0), uint64(0)
	if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&all)), uintptr(unsafe.Pointer(&old)), 8, 0, 0); e != 0 {
		return 0, fmt.Errorf("sigprocmask: %w", e)
	}
	parent := uintptr(os.Getppid())
	n, _, e := clone(parent)
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&old)), 0, 8, 0, 0)
	if e != 0 {
		return 0, fmt.Errorf("clone: %w", e)
	}
	return int(n), nil
}

// clone returns in this process only. The shadow makes bare system calls: it has a copy of this
// process's memory, and none of its other threads.
//
//go:noinline
//go:norace
//go:nosplit
func clone(parent uintptr) (pid, _ uintptr, err unix.Errno) {
	pid, _, err = unix.RawSyscall6(unix.SYS_CLONE, unix.CLONE_FILES|unix.CLONE_PARENT, 0, 0, 0, 0, 0)
	if err != 0 || pid != 0 {
		return pid, 0, err
	}
	_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NAME, uintptr(unsafe.Pointer(&shadowName)), 0, 0, 0, 0)
	_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0, 0)
	now, _, _ := unix.RawSyscall6(unix.SYS_GETPPID, 0, 0, 0, 0, 0, 0)
	for now == parent {
		_, _, _ = unix.RawSyscall6(unix.SYS_PPOLL, 0, 0, 0, 0, 0, 0)
	}
	for {
		_, _, _ = unix.RawSyscall6(unix.SYS_EXIT_GROUP, 0, 0, 0, 0, 0, 0)
	}
}
