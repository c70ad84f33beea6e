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

// failure names what a call that began then has failed with. An ESTALE is late if the call took a second:
// a view that has sent a call to look its names up again remembers that for a second.
func failure(what string, began time.Time, err error) string {
	if err == unix.ESTALE && time.Since(began) >= time.Second {
		return what + " ESTALE late"
	}
	return what + " " + unix.ErrnoName(err.(unix.Errno))
}

// churn creates, writes, renames, removes and links names in a directory, and counts opens and
// failures.
func churn(dir string, lasts time.Duration) (opens int, failed map[string]int) {
	rnd := rand.New(rand.NewPCG(uint64(os.Getpid()), 0))
	name := func() string { return filepath.Join(dir, fmt.Sprint("f", rnd.IntN(20))) }
	failed = make(map[string]int)
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		var what string
		var err error
		began := time.Now()
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
			failed[failure(what, began, err)]++
		}
	}
	return opens, failed
}

// saves has threads save a file by rename, link and unlink it, and append to it, all at once. It
// returns the numbers of calls and failures.
func saves(path string, lasts time.Duration) (calls int, failed map[string]int) {
	var mu sync.Mutex
	failed = make(map[string]int)
	note := func(what string, began time.Time, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		calls++
		if err != nil {
			failed[failure(what, began, err)]++
		}
		return err == nil
	}
	write := func(what, path string, flags int) bool {
		began := time.Now()
		fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
		if !note(what, began, err) {
			return false
		}
		began = time.Now()
		_, err = unix.Write(fd, []byte("x"))
		return note("write", began, err) && note("close", time.Now(), unix.Close(fd))
	}
	mine := fmt.Sprint(path, os.Getpid())
	var threads sync.WaitGroup
	for _, what := range []func(){
		func() {
			if write("create", mine, unix.O_CREAT|unix.O_TRUNC) {
				note("rename", time.Now(), unix.Rename(mine, path))
			}
		},
		func() {
			if note("link", time.Now(), unix.Link(path, mine+"~")) {
				for !note("unlink", time.Now(), unix.Unlink(mine+"~")) { // else it stays
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
	note := func(what string, began time.Time, err error) bool {
		if err != nil {
			failed[failure(what, began, err)]++
		}
		return err == nil
	}
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		opens++
		began := time.Now()
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
		if !note("open", began, err) {
			time.Sleep(10 * time.Millisecond) // as such programs do
			continue
		}
		var st unix.Stat_t
		if note("flock", time.Now(), unix.Flock(fd, unix.LOCK_EX)) && note("fstat", time.Now(), unix.Fstat(fd, &st)) && st.Nlink > 0 {
			note("unlink", time.Now(), unix.Unlink(path))
		}
		note("close", time.Now(), unix.Close(fd))
	}
	return opens, failed
}
