package main

import (
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// usage is the CPU time of processes.
type usage struct {
	client, etcd time.Duration
}

// usage reads the CPU time of this process, and of all members together.
func (c *cluster) usage() (u usage, err error) {
	if u.client, err = cpuTime(os.Getpid()); err != nil {
		return u, err
	}
	for _, m := range c.members {
		t, err := cpuTime(m.pid())
		if err != nil {
			return u, err
		}
		u.etcd += t
	}
	return u, nil
}

func (u usage) since(before usage) usage {
	return usage{client: u.client - before.client, etcd: u.etcd - before.etcd}
}

// cpuTime reads a CPU clock, see clock_getcpuclockid(3): /proc/PID/stat has steps of 10 ms.
func cpuTime(pid int) (time.Duration, error) {
	const schedClock = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|schedClock), &ts); err != nil {
		return 0, fmt.Errorf("CPU time of process %d: %w", pid, err)
	}
	return time.Duration(ts.Nano()), nil
}

// memory returns the bytes that this process uses, and the members' resident bytes.
func (c *cluster) memory() (client, etcd float64, err error) {
	runtime.GC()
	runtime.GC() // free what pools kept
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	client = float64(m.HeapAlloc + m.StackInuse)
	for _, member := range c.members {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", member.pid()))
		if err != nil {
			return 0, 0, err
		}
		var size, resident float64
		if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
			return 0, 0, err
		}
		etcd += resident * float64(os.Getpagesize())
	}
	return client, etcd, nil
}
