package serve

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// askers are threads without the process's descriptors, which may ask the process's own
// views. If a thread with descriptors waited for such an answer when the daemon is killed,
// the process would never end: the kernel ends a FUSE connection only when the last thread
// that has its descriptor is gone.
//
// The threads are made before anything is opened, and stay. To drop descriptors later would
// close them; that flushes files, and hangs on a network volume that hangs. The threads
// keep the descriptors from before, above all those of Go's poller: any thread may have to
// wake it, and the process ends silently if it cannot.
type askers chan func(parted error)

// newAskers starts n threads, for the life of the process.
func newAskers(n int) askers {
	time.Sleep(time.Nanosecond) // a timer makes Go open its poller
	a := make(askers)
	for range n {
		ready := make(chan struct{})
		go a.serve(ready)
		<-ready
	}
	return a
}

// do calls ask in one of the threads. It waits while all are busy.
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
	runtime.LockOSThread() // for ever
	if unix.Gettid() == unix.Getpid() {
		// /proc/self/fd shows the main thread's descriptors, so it must not be an asker.
		// While it is locked here, the next goroutine gets another thread.
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
