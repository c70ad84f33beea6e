package fs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// relay is a socket pair between a server of the library and the kernel, while the server begins
// or ends. What the server answers meanwhile, the relay sends on to the kernel.
type relay struct {
	device int
	ours   int // our end
	theirs int // the server's end, until it has it

	mu       sync.Mutex
	withheld map[uint64]bool // GUARDED_BY(mu); requests whose answers are not sent on
	closed   bool            // GUARDED_BY(mu); ours is
	done     chan struct{}   // closed when nobody has the other end any more
}

// relayBuffer has room for several of the largest answers.
const relayBuffer = 4 * maxWrite

// newRelay returns a relay that relays nothing until run.
func newRelay(device int) (*relay, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	for _, fd := range pair {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, relayBuffer); err != nil {
			unix.Close(pair[0])
			unix.Close(pair[1])
			return nil, fmt.Errorf("relay: no buffer for the largest answer: %w", err)
		}
	}
	return &relay{device: device, ours: pair[0], theirs: pair[1], withheld: make(map[uint64]bool), done: make(chan struct{})}, nil
}

// withhold keeps the answer to a request from the kernel: somebody else will answer it.
func (r *relay) withhold(unique uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withheld[unique] = true
}

func (r *relay) run() {
	defer close(r.done)
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.closed = true
		unix.Close(r.ours)
	}()
	buf := make([]byte, maxWrite+2*os.Getpagesize())
	for {
		n, err := ignoringEINTR(func() (int, error) { return unix.Read(r.ours, buf) })
		if err != nil || n == 0 {
			return
		}
		r.mu.Lock()
		withheld := r.withheld[answerHeader(buf).Unique]
		r.mu.Unlock()
		if !withheld {
			// ENOENT: the request's program has ended. The library ignores it too.
			_, _ = ignoringEINTR(func() (int, error) { return unix.Write(r.device, buf[:n]) })
		}
	}
}

// endReads makes a server end that waits for a request from the relay. It can still answer.
func (r *relay) endReads() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		_ = unix.Shutdown(r.ours, unix.SHUT_WR)
	}
}

// send gives the server a request, as if from the kernel.
func (r *relay) send(request []byte) error {
	_, err := ignoringEINTR(func() (int, error) { return unix.Write(r.ours, request) })
	return err
}

// awaitRead returns when the server has read all that was sent.
func (r *relay) awaitRead() error {
	for {
		unread, err := unix.IoctlGetInt(r.ours, unix.SIOCOUTQ)
		if err != nil || unread == 0 {
			return err
		}
		time.Sleep(100 * time.Microsecond) // it has no CPU yet
	}
}

// receive returns the server's next answer, before run.
func (r *relay) receive() ([]byte, error) {
	buf := make([]byte, os.Getpagesize())
	n, err := ignoringEINTR(func() (int, error) { return unix.Read(r.ours, buf) })
	return buf[:max(n, 0)], err
}

func answerHeader(answer []byte) *fuse.OutHeader {
	return (*fuse.OutHeader)(unsafe.Pointer(&answer[0]))
}

// raw returns the bytes of a message of the kernel's protocol.
func raw[T any](message *T) []byte {
	return bytes.Clone(unsafe.Slice((*byte)(unsafe.Pointer(message)), unsafe.Sizeof(*message)))
}

// handOver makes the descriptor number refer to the file of fd from now on. A thread that has begun
// to read the former file may still read one request from it.
func handOver(ctx context.Context, fd, number int) error {
	if err := unix.Dup3(fd, number, unix.O_CLOEXEC); err != nil {
		return err
	}
	return interruptReads(ctx, number)
}

// interruptReads ends the reads of a descriptor that wait, in all threads of the process: a signal
// makes the kernel begin them again, with the file that the descriptor has now. It returns when each
// thread has taken the signal, and so has left the system call that it was in, or is seen in
// another call, which can last. Go sends SIGURG to its threads itself, and ignores one more.
func interruptReads(ctx context.Context, number int) error {
	pid := os.Getpid()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		if tid, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Tgkill(pid, tid, unix.SIGURG) // ESRCH: it has ended
		}
	}
	for _, t := range tasks {
		task := "/proc/self/task/" + t.Name()
		for pending(task+"/status", unix.SIGURG) && mayRead(task+"/syscall", number) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			time.Sleep(100 * time.Microsecond) // it has no CPU yet
		}
	}
	return nil
}

// mayRead reports whether a thread may be in a read of a descriptor.
func mayRead(syscall string, number int) bool {
	text, err := os.ReadFile(syscall)
	words := strings.Fields(string(text))
	if err != nil || len(words) < 2 { // "running"
		return !errors.Is(err, os.ErrNotExist)
	}
	return words[0] == strconv.Itoa(unix.SYS_READ) && words[1] == "0x"+strconv.FormatInt(int64(number), 16)
}

// pending reports whether a thread has still to take a signal.
func pending(status string, signal unix.Signal) bool {
	text, err := os.ReadFile(status)
	if err != nil {
		return false // it has ended
	}
	_, mask, _ := bytes.Cut(text, []byte("\nSigPnd:"))
	mask, _, _ = bytes.Cut(mask, []byte("\n"))
	set, err := strconv.ParseUint(string(bytes.TrimSpace(mask)), 16, 64)
	return err == nil && set&(1<<(signal-1)) != 0
}
