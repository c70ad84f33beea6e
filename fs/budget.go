package fs

import (
	"fmt"
	"math"
	"sync"

	"golang.org/x/sys/unix"
)

// budget divides a resource of the process among payers. A payer may have as much as is left for
// all others, so one alone gets half.
type budget struct {
	mu   sync.Mutex
	free int64           // GUARDED_BY(mu)
	held map[payer]int64 // only payers that hold some. GUARDED_BY(mu)
}

const (
	// Without $GOMEMLIMIT: 32,000 small requests of one payer, or 500 large ones.
	backlogSize = 1 << 30
	// waiterSize is what each waiting request takes: 13.5 KiB were measured.
	waiterSize = 16 << 10
	// smallRequest is the longest request, in bytes, that go-fuse copies out of its read buffer.
	smallRequest = 127
	maxWrite     = 1 << 20
)

// errBacklog says that a request was refused at a gate, for lack of memory.
var errBacklog = fmt.Errorf("the requests that wait for the volume hold too much memory: %w", unix.ENOMEM)

func newBudget(size int64) *budget { return &budget{free: size, held: make(map[payer]int64)} }

// backlogOf is the memory, in bytes, of requests that wait at a process's gates, with their data and
// the buffers for their answers, and of directories that are being listed. math.MaxInt64 is Go's
// unlimited memory.
func backlogOf(limit int64) int64 {
	if limit == math.MaxInt64 {
		return backlogSize
	}
	return limit / 2
}

// waiterBytes is what a waiting request of length bytes holds, with answer bytes for its reply.
func waiterBytes(length uint32, answer int) int64 {
	n := int64(waiterSize + answer)
	if length > smallRequest {
		n += maxWrite
	}
	return n
}

// take reserves n for a payer, and reports success.
func (b *budget) take(p payer, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > 0 && b.held[p]+n > b.free-n {
		return false
	}
	b.held[p] += n
	b.free -= n
	return true
}

// keep reserves n that a payer had in another process.
func (b *budget) keep(p payer, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held[p] += n
	b.free -= n
}

func (b *budget) give(p payer, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	if b.held[p] -= n; b.held[p] == 0 {
		delete(b.held, p)
	}
}
