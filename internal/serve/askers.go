package serve

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// askers are threads without the process's descriptors, which may ask the process's own views. A
// killed daemon could not end if one of its threads waited for such an answer and had the
// descriptors: the FUSE connection ends only when its last descriptor is closed.
//
// The threads are made before anything is opened. To drop descriptors later would be to close them,
// and so to flush files, which hangs if the volume does. The threads keep the descriptors that
// exist by then, such as Go's poller, which any thread may have to wake.
type askers chan func(parted error)

func newAskers(n int) askers {
	time.Sleep(time.Nanosecond) // the use of a timer makes Go open its poller
	a := make(askers)
	for range n {
		ready := make(chan struct{})
		go a.serve(ready)
		<-ready
	}
	return a
}

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
