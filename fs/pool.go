package fs

import (
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Pool is what the views of one process share: the memory of waiting requests, and the
// descriptors. Each inode that the kernel knows costs a descriptor. When all views together
// have too many, those with more than their share make the kernel forget some.
type Pool struct {
	limit int          // half of the descriptors; the others are for open files, and for new nodes
	used  atomic.Int64 // nodes of all views
	held  *backlog

	mu    sync.Mutex
	views []*nodes // GUARDED_BY(mu)
}

// NewPool returns one for all views of the process.
func NewPool() *Pool {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		l.Cur = 1024 // what is usual
	}
	return &Pool{limit: int(l.Cur / 2), held: newBacklog(backlogOf(debug.SetMemoryLimit(-1)))}
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

// crowded reports whether there are as many nodes as there may be.
func (p *Pool) crowded() bool { return p.used.Load() >= int64(p.limit) }

// relieve wakes the shedders of views with too many nodes, if there are too many.
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
		default: // it is known
		}
	}
}

// share needs mu.
func (p *Pool) share() int { return p.limit / max(1, len(p.views)) }

// excess is how many nodes a view has to shed: those that are too many and a quarter more, but
// none of its share.
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
