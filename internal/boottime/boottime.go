// Package boottime reads the clock that fencing is judged by.
//
// A lease runs on while this machine sleeps, is paused, or while the process
// is frozen. CLOCK_MONOTONIC, which Go's timers and time.Since use, stops
// during a system suspend; the wall clock is set by people and by NTP.
// CLOCK_BOOTTIME does neither: it never goes back and it counts the sleep.
//
//	              suspend
//	MONOTONIC ──────┤├──────────►   timers: when to look
//	BOOTTIME  ──────┼┼──────────►   truth:  what time it is
//
// What it cannot see is a hypervisor that stops the virtual machine together
// with its clock. Its rate is disciplined by NTP, within 500 ppm.
package boottime

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Instant is CLOCK_BOOTTIME in nanoseconds: meaningless on another machine or after a reboot.
type Instant int64

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Clock tells the time, never back, for concurrent use and without allocating.
type Clock interface {
	Now() Instant
}

// System is the kernel's CLOCK_BOOTTIME.
type System struct{}

// Now is the time when it returns. It panics if the kernel has no such clock (before Linux 2.6.39): no
// write could be fenced.
func (System) Now() Instant { return promptly(read) }

// promptly reads the clock again if that took long. It is a system call, in which the process may be
// stopped when the time is known already, and go on much later. Two other clocks tell, which are read
// without one.
func promptly(read func() Instant) Instant {
	for tries := 1; ; tries++ {
		before := time.Now()
		now := read()
		after := time.Now()
		wall := after.Round(0).Sub(before.Round(0)) // which a suspend does not stop
		if max(after.Sub(before), wall) < quick || tries == mostTries {
			return now
		}
	}
}

// A reading takes less than a microsecond, unless the process is stopped or has no CPU.
const (
	quick     = time.Millisecond
	mostTries = 100
)

func read() Instant {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("boottime: clock_gettime(CLOCK_BOOTTIME): %v", err))
	}
	return Instant(ts.Nano())
}

// BootID returns the kernel's random name of this boot. Equal ones share a clock and a /run.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("reading the boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
