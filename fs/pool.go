package fs

import (
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Pool is what the views of a process share: the memory of waiting requests, and descriptors, one
// for each inode that the kernel knows. When there are too many, views above their share make the
// kernel forget some.
type Pool struct {
	limit   int          // half of the descriptors; the rest is for open files and new nodes
	used    atomic.Int64 // nodes of all views
	closing atomic.Int64 // descriptors that closers will close
	memory  *budget      // bytes of requests that wait, and of directories that are being listed
	open    *budget      // open files and directories, each a descriptor besides its node's

	mu    sync.Mutex
	views []*nodes      // GUARDED_BY(mu)
	room  chan struct{} // closed when there is room; nil: nobody waits. GUARDED_BY(mu)
	inUse bool          // nothing was forgotten while somebody waited. GUARDED_BY(mu)
}

// roomWait is short: before Linux 6.18 the shedder may wait for the LOOKUP's directory lock.
const roomWait = 100 * time.Millisecond

// NewPool returns a pool for all views of the process.
func NewPool() *Pool {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		l.Cur = 1024 // the usual limit
	}
	return &Pool{limit: int(l.Cur / 2), memory: newBudget(backlogOf(debug.SetMemoryLimit(-1))), open: newBudget(int64(l.Cur / 2))}
}

func (p *Pool) join(t *nodes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.views = append(p.views, t)
	p.used.Add(int64(t.len()))
	debug.SetMaxThreads(goThreads + len(p.views)*viewThreads)
}

// All views of a process may hang at once.
const (
	goThreads   = 10000
	viewThreads = volumeSize + closingSize + noticesSize + bereaving + flushers + closers
)

func (p *Pool) leave(t *nodes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.views = slices.DeleteFunc(p.views, func(v *nodes) bool { return v == t })
	p.used.Add(-int64(t.len()))
}

// full reports whether few descriptors are left for open files.
func (p *Pool) full() bool { return p.used.Load()+p.closing.Load() >= int64(p.limit+p.limit/2) }

// awaitRoom waits while the pool is full, at most roomWait; not at all if all nodes seem in use.
func (p *Pool) awaitRoom(cancel <-chan struct{}) {
	if !p.full() {
		return
	}
	p.relieve()
	timeout := time.NewTimer(roomWait)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		if p.room == nil {
			p.room = make(chan struct{})
		}
		room, inUse := p.room, p.inUse
		p.mu.Unlock()
		if inUse || !p.full() {
			return
		}
		select {
		case <-room:
		case <-timeout.C:
			p.mu.Lock()
			p.inUse = p.room == room
			p.mu.Unlock()
			return
		case <-cancel:
			return
		}
	}
}

func (p *Pool) freed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inUse = false
	if p.room != nil && !p.full() {
		close(p.room)
		p.room = nil
	}
}

func (p *Pool) crowded() bool { return p.used.Load() >= int64(p.limit) }

// relieve wakes the shedders of views with too many nodes, if the pool has too many.
func (p *Pool) relieve() {
	if p.used.Load() <= int64(p.limit) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.views {
		if t.len() < p.share() {
			continue
		}
		select {
		case t.crowd <- struct{}{}:
		default: // one is pending
		}
	}
}

// share needs mu.
func (p *Pool) share() int { return p.limit / max(1, len(p.views)) }

// excess is how many nodes a view sheds: its excess and a quarter more, but none of its share.
func (p *Pool) excess(t *nodes) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(int(p.used.Load())-p.limit*3/4, t.len()-p.share()*3/4)
}

// limitOf is how many nodes a view may have now.
func (p *Pool) limitOf(t *nodes) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(p.share(), p.limit-int(p.used.Load())+t.len())
}
