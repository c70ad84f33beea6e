package serve

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// askers are threads that may wait for an answer of the process itself: they
// have none of its descriptors. A daemon that is killed while one of its threads
// waits for its own answer would never end: the kernel gives a connection up
// when the last thread that has its descriptor is gone, and that one would not be.
//
// They are made before anything is opened, and stay: to part with the
// descriptors is to close them, which flushes what was written to a file on a
// network volume, and hangs where the volume does. They keep what was there
// before, most of all Go's own: any thread may have to wake the one that polls
// for timers, and the process ends, without a word, if it cannot.
type askers chan func(parted error)

// newAskers returns n of them, for as long as the process lives.
func newAskers(n int) askers {
	time.Sleep(time.Nanosecond) // Go opens what it polls with when first there is a timer
	a := make(askers)
	for range n {
		ready := make(chan struct{})
		go a.serve(ready)
		<-ready
	}
	return a
}

// do has ask called by one of the threads. It waits while all of them do.
func (a askers) do(ask func() error) error {
	answer := make(chan error)
	a <- func(err error) {
		if err == nil {
			err = ask()
		}
		answer <- err
	}
	return <-answer
}

func (a askers) serve(ready chan<- struct{}) {
	runtime.LockOSThread() // for good
	if unix.Gettid() == unix.Getpid() {
		// The main thread's descriptors are what /proc/self/fd shows. As long as
		// it is locked here, the next goroutine gets another thread.
		parted := make(chan struct{})
		go a.serve(parted)
		<-parted
		runtime.UnlockOSThread()
		close(ready)
		return
	}
	err := unix.Unshare(unix.CLONE_FILES)
	if err != nil {
		err = fmt.Errorf("cannot ask the view: unshare: %w", err)
	}
	close(ready)
	for ask := range a {
		ask(err)
	}
}
