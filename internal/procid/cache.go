package procid

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cacheFor is how long a Cache keeps what may change while a thread lives: its
	// program's name, and its pod.
	cacheFor = 100 * time.Millisecond
	// cacheSize bounds a Cache, which keeps a descriptor for each thread.
	cacheSize = 64
)

// Cache remembers answers of Lookup, a large part of the cost of an open. An owner is never out of
// date: the answer's pidfd stands for that thread, whoever gets its number later. The zero Cache
// is empty. Close ends it.
type Cache struct {
	// Proc is where it looks.
	Proc Proc

	mu      sync.Mutex
	callers map[int]cached // by tid; GUARDED_BY(mu)
	closed  bool           // GUARDED_BY(mu)
}

type cached struct {
	Caller
	thread int // pidfd
	read   time.Time
}

// Lookup is Proc.Lookup.
func (c *Cache) Lookup(tid int) (Caller, error) {
	c.mu.Lock()
	e, ok := c.callers[tid]
	if ok && time.Since(e.read) < cacheFor && lives(e.thread) {
		c.mu.Unlock()
		return e.Caller, nil
	}
	if ok {
		delete(c.callers, tid)
		unix.Close(e.thread)
	}
	c.mu.Unlock()

	e = cached{read: time.Now()}
	var unseen, err error
	e.thread, unseen = unix.PidfdOpen(tid, unix.PIDFD_THREAD)
	if unseen == unix.EINVAL { // Linux before 6.9 has pidfds of processes only: other threads are not kept
		e.thread, unseen = unix.PidfdOpen(tid, 0)
	}
	e.Caller, err = c.Proc.Lookup(tid)
	if unseen != nil {
		return e.Caller, err
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	_, taken := c.callers[tid]
	// If it is still alive, it is the thread that was looked up.
	if err != nil || taken || c.closed || !lives(e.thread) {
		unix.Close(e.thread)
		return e.Caller, err
	}
	if len(c.callers) >= cacheSize {
		c.clear()
	}
	if c.callers == nil {
		c.callers = make(map[int]cached)
	}
	c.callers[tid] = e
	return e.Caller, nil
}

// Close closes all descriptors. Lookup works on, without remembering.
func (c *Cache) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clear()
	c.closed = true
}

// clear needs mu.
func (c *Cache) clear() {
	for _, e := range c.callers {
		unix.Close(e.thread)
	}
	clear(c.callers)
}

func lives(pidfd int) bool {
	return unix.PidfdSendSignal(pidfd, 0, nil, 0) != unix.ESRCH
}
