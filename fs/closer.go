package fs

import (
	"sync"

	"golang.org/x/sys/unix"
)

const closers = 4

// closer closes descriptors in the background: a removed file's last close may hang with the
// volume.
type closer struct {
	pool *Pool // counts what is still to close

	mu      sync.Mutex
	fds     []int // GUARDED_BY(mu)
	running int   // GUARDED_BY(mu)
}

func (c *closer) close(fds ...int) {
	c.pool.closing.Add(int64(len(fds)))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fds = append(c.fds, fds...)
	if c.running < closers {
		c.running++
		go c.run()
	}
}

func (c *closer) run() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.fds) > 0 {
		fd := c.fds[0]
		c.fds = c.fds[1:]
		c.mu.Unlock()
		unix.Close(fd)
		c.pool.closing.Add(-1)
		c.pool.freed()
		c.mu.Lock()
	}
	c.running--
}
