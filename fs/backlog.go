package fs

import (
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// backlog bounds the memory of requests that wait at the gates of a process. Each keeps its
// data, and the buffer for its answer. A payer may have as much as is left for all others: one
// alone gets half.
type backlog struct {
	mu   sync.Mutex
	free int64           // bytes. GUARDED_BY(mu)
	held map[payer]int64 // bytes; without those that hold none. GUARDED_BY(mu)
}

const (
	// backlogSize is for a process without a limit of memory ($GOMEMLIMIT): 32,000 small
	// requests of one payer, or 500 large ones.
	backlogSize = 1 << 30
	// waiterSize is what a request takes in any case: 13.5 KiB were measured.
	waiterSize = 16 << 10
	// smallRequest is the maximum length, in bytes, of a request that go-fuse copies. A
	// larger one keeps the buffer that it was read into, which has room for the largest
	// WRITE. All of that is resident from its second use on.
	smallRequest = 127
	maxWrite     = 1 << 20
)

// errBacklog says that a request is not inside a gate, and cannot wait for it.
var errBacklog = fmt.Errorf("the requests that wait for the volume hold too much memory: %w", unix.ENOMEM)

func newBacklog(size int64) *backlog { return &backlog{free: size, held: make(map[payer]int64)} }

// backlogOf is the size of the backlog of a process whose memory has a limit. math.MaxInt64 is
// Go's word for none.
func backlogOf(limit int64) int64 {
	if limit == math.MaxInt64 {
		return backlogSize
	}
	return limit / 2
}

// waiterBytes is what a request of length bytes holds while it waits, with a buffer of
// answer bytes for its reply.
func waiterBytes(length uint32, answer int) int64 {
	n := int64(waiterSize + answer)
	if length > smallRequest {
		n += maxWrite
	}
	return n
}

// take reports whether a payer may hold n bytes more, and does now.
func (b *backlog) take(p payer, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && b.held[p]+n > b.free-n {
		return false
	}
	b.held[p] += n
	b.free -= n
	return true
}

func (b *backlog) give(p payer, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	if b.held[p] -= n; b.held[p] == 0 {
		delete(b.held, p)
	}
}
