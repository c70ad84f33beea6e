package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/boottime"
)

// deadman is a kernel timer that kills this process, even a stopped one, unless it is set again.
type deadman struct{ id int32 }

func newDeadman() (*deadman, error) {
	event := struct { // struct sigevent, 64 bytes
		value          uintptr
		signal, notify int32 // notify 0 is SIGEV_SIGNAL
		_              [52]byte
	}{signal: int32(unix.SIGKILL)}
	d := &deadman{}
	if _, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_BOOTTIME, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&d.id))); errno != 0 {
		return nil, fmt.Errorf("timer_create: %w", errno)
	}
	return d, nil
}

// set replaces the instant of expiry. It cannot fail for an existing timer.
func (d *deadman) set(at boottime.Instant) { d.settime(unix.NsecToTimespec(int64(max(at, 1)))) }

func (d *deadman) stop() { d.settime(unix.Timespec{}) }

func (d *deadman) settime(at unix.Timespec) {
	const absolute = 1 // TIMER_ABSTIME
	spec := unix.ItimerSpec{Value: at}
	_, _, _ = unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(d.id), absolute, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
}
