// Package lifeline proves that a mount of this machine has died.
//
// A daemon holds a flock on a file of its own for as long as it lives: the
// kernel drops it when the last of the process's threads has ended, after the
// last of its writes. Whoever gets the flock has that proof. A name, a pid or a
// node prove nothing: they are given again, and a daemon that is frozen, or
// that does not answer, still has its flock.
//
// The file also says which device the daemon wrote to: what it wrote may still
// be in the cache of that one, and of no other.
//
// The files are the machine's own; a session's record names its file and the
// boot, for a flock says nothing of another machine's.
package lifeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

var (
	// ErrAlive: the daemon is alive, whatever it does.
	ErrAlive = errors.New("lifeline: held")
	// ErrUnknown: nothing is known here of such a daemon.
	ErrUnknown = errors.New("lifeline: not of this machine")
)

// unnamed begins the name of a lifeline that is not held yet.
const unnamed = ".new-"

// Line is a lifeline that this process holds: its own, or that of a dead daemon.
type Line struct {
	ID  string // names it in dir
	Dev uint64 // the device that the daemon writes to, or wrote to

	path string
	file *os.File
}

// Hold makes and holds a lifeline in dir for a daemon that writes to dev.
func Hold(dir string, dev uint64) (*Line, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	for {
		l, err := hold(dir, dev)
		if err != errSwept {
			return l, err
		}
	}
}

// errSwept: another daemon's Sweep took the file for a dead daemon's.
var errSwept = errors.New("lifeline: swept")

func hold(dir string, dev uint64) (*Line, error) {
	l := &Line{ID: uuid.NewString(), Dev: dev}
	l.path = filepath.Join(dir, l.ID)
	// It gets its name when it is held: a file without a holder belongs to a dead daemon.
	f, err := os.CreateTemp(dir, unnamed)
	if err != nil {
		return nil, err
	}
	l.file = f
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	swept := err == unix.EWOULDBLOCK
	if err == nil {
		_, err = fmt.Fprintln(f, dev)
	}
	if err == nil {
		err = os.Rename(f.Name(), l.path)
		swept = errors.Is(err, os.ErrNotExist)
	}
	if err != nil {
		f.Close()
		_ = os.Remove(f.Name())
		if swept {
			err = errSwept
		}
		return nil, err
	}
	return l, nil
}

// Claim takes over lifeline id in dir, which proves the daemon dead. Errors: ErrAlive, ErrUnknown.
func Claim(dir, id string) (*Line, error) {
	if _, err := uuid.Parse(id); err != nil { // it comes from the lock service, and becomes a path
		return nil, ErrUnknown
	}
	l := &Line{ID: id, path: filepath.Join(dir, id)}
	f, err := os.OpenFile(l.path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrUnknown
	}
	if err != nil {
		return nil, err
	}
	l.file = f
	if err := l.take(); err != nil {
		f.Close()
		return nil, err
	}
	return l, nil
}

// File is the open file whose flock is the lifeline.
func (l *Line) File() *os.File { return l.file }

// Adopt returns lifeline id in dir, which another process of the same mount has held and passed as
// file.
func Adopt(dir, id string, file *os.File) (*Line, error) {
	if _, err := uuid.Parse(id); err != nil {
		return nil, err
	}
	l := &Line{ID: id, path: filepath.Join(dir, id), file: file}
	return l, l.take() // it has the flock already
}

func (l *Line) take() error {
	err := unix.Flock(int(l.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return ErrAlive
	}
	if err != nil {
		return err
	}
	// Its holder may have ended normally, and removed it, since it was opened.
	if _, err := os.Lstat(l.path); err != nil {
		return ErrUnknown
	}
	content := make([]byte, 32)
	n, _ := l.file.ReadAt(content, 0)
	l.Dev, err = strconv.ParseUint(strings.TrimSpace(string(content[:n])), 10, 64)
	return err
}

// Close releases the lifeline and removes it: its session has been ended.
func (l *Line) Close() {
	_ = os.Remove(l.path)
	l.file.Close()
}

// Leave releases the lifeline and keeps the file, so that others can claim it.
func (l *Line) Leave() { l.file.Close() }

// unfinished are lifelines that end with the process.
var unfinished struct {
	sync.Mutex
	lines []*Line // GUARDED_BY(Mutex); else a file that nobody uses is closed
}

// Keep holds the lifeline until the process has ended, with the last write of its threads.
func (l *Line) Keep() {
	unfinished.Lock()
	defer unfinished.Unlock()
	unfinished.lines = append(unfinished.lines, l)
}

// Sweep removes the lifelines in dir that nobody holds, except those of needed, and what a daemon has
// left that died before it held one.
func Sweep(dir string, needed func(id string) bool) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), unnamed) {
			sweepUnnamed(filepath.Join(dir, e.Name()))
			continue
		}
		if needed(e.Name()) {
			continue
		}
		if l, err := Claim(dir, e.Name()); err == nil {
			l.Close()
		}
	}
	return nil
}

// sweepUnnamed removes a file that Hold has made, if nobody holds it.
func sweepUnnamed(path string) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
		_ = os.Remove(path)
	}
}
