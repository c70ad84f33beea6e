package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// churn creates, writes, renames, removes and links names in a directory, and counts opens and
// failures.
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

// saves has threads save a file by rename, link and unlink it, and append to it, all at once. It
// returns the numbers of calls and failures.
func saves(path string, lasts time.Duration) (calls int, failed map[string]int) {
	var mu sync.Mutex
	failed = make(map[string]int)
	note := func(what string, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if err != nil {
			failed[what+" "+unix.ErrnoName(err.(unix.Errno))]++
		}
		return err == nil
	}
	write := func(what, path string, flags int) bool {
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
		if !note(what, err) {
			return false
		}
		_, err = unix.Write(fd, []byte("x"))
		return note("write", err) && note("close", unix.Close(fd))
	}
	mine := fmt.Sprint(path, os.Getpid())
	var threads sync.WaitGroup
	for _, what := range []func(){
		func() {
			if write("create", mine, unix.O_CREAT|unix.O_TRUNC) {
				note("rename", unix.Rename(mine, path))
			}
		},
		func() {
			if note("link", unix.Link(path, mine+"~")) {
				for !note("unlink", unix.Unlink(mine+"~")) { // else it stays
				}
			}
		},
		func() { write("open", path, unix.O_APPEND) },
		func() { write("open", path, unix.O_APPEND) },
	} {
		threads.Go(func() {
			for end := time.Now().Add(lasts); time.Now().Before(end); {
				what()
			}
		})
	}
	threads.Wait()
	return calls, failed
}

// lockFiles locks by a file that it makes and removes, as Python's filelock does. It returns the
// numbers of opens and failures.
func lockFiles(path string, lasts time.Duration) (opens int, failed map[string]int) {
	failed = make(map[string]int)
	note := func(what string, err error) bool {
		if err != nil {
			failed[what+" "+unix.ErrnoName(err.(unix.Errno))]++
		}
		return err == nil
	}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		opens++
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
		if !note("open", err) {
			time.Sleep(10 * time.Millisecond) // as such programs do
			continue
		}
		var st unix.Stat_t
		if note("flock", unix.Flock(fd, unix.LOCK_EX)) && note("fstat", unix.Fstat(fd, &st)) && st.Nlink > 0 {
			note("unlink", unix.Unlink(path))
		}
		note("close", unix.Close(fd))
	}
	return opens, failed
}
