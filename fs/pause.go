package fs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
	"unsafe"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// A view is paused to be handed on: its server reads no more requests, and answers those that it
// has read. Requests that wait for a lock are not answered. Whoever serves the view next gets
// them again, as if from the kernel; OPENs go on where they stood in line (ADR 0050).

// handing is what becomes of requests that wait for a lock.
type handing struct {
	mu      sync.Mutex
	relay   *relay              // GUARDED_BY(mu); nil: the view is not paused
	waiting []*waiting          // GUARDED_BY(mu); requests to be handed on
	resumed map[uint64]*waiting // GUARDED_BY(mu); requests handed on to this server, until they come
}

// waiting is a request that waited for a lock when the view was paused: an OPEN in line, or a try
// of a call that cannot queue.
type waiting struct {
	request   []byte
	visit     visit   // an OPEN's, as are at and path
	at        dirName // the file's name
	path      string  // that it waited for
	resume    lockmgr.Resume
	signalled bool            // its caller got a signal before; see interrupted
	cancel    <-chan struct{} // closed when its caller has got a signal; nil: it was another process's

	came    chan struct{} // closed when it stands in line again, or is answered
	arrived sync.Once
}

func (w *waiting) header() *fuse.InHeader { return (*fuse.InHeader)(unsafe.Pointer(&w.request[0])) }

func (w *waiting) opens() bool {
	const opcode = 14 // FUSE_OPEN
	return w.header().Opcode == opcode
}

// interrupted reports whether the caller got a signal. It is asked when the server that had the
// request has ended: a signal can come when the request is handed on already.
func (w *waiting) interrupted() bool {
	select {
	case <-w.cancel:
		return true
	default:
		return w.signalled
	}
}

func (w *waiting) arrive() { w.arrived.Do(func() { close(w.came) }) }

// readTimeout is after how long a paused server's reads end.
var readTimeout = unix.Timeval{Usec: 1000}

// ErrBusy: requests under way did not end in time.
var ErrBusy = errors.New("requests are under way in the volume")

// CanPause returns an error if the view cannot be paused at all.
func (f *FS) CanPause() error {
	if f.device < 0 {
		return errors.New("the daemon is not root")
	}
	_, err := f.initAnswer()
	return err
}

// Pause stops the view, after CanPause. Until Resume, its programs wait. If requests under way do not end before
// ctx does, the view goes on, and Pause fails with ErrBusy.
func (f *FS) Pause(ctx context.Context) error {
	if err := f.rest(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	r, theirs, err := newRelay(f.device)
	if err == nil {
		err = unix.SetsockoptTimeval(theirs, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &readTimeout)
	}
	s := f.serving.Load()
	select {
	case <-f.ended:
		err = errors.New("it is unmounted")
	default:
	}
	if err != nil {
		f.work()
		return err
	}
	f.pausing.Store(true)
	f.visits.pause()
	f.handing.mu.Lock()
	f.handing.relay = r
	f.handing.mu.Unlock()
	f.locks.HandOn()
	go r.run()
	err = handOver(ctx, theirs, s.number)
	unix.Close(theirs)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	if err == nil {
		err = f.drained(ctx, r, s)
	}
	if err != nil {
		return errors.Join(err, f.Resume())
	}
	return nil
}

// drained returns when all that s and its predecessors have read is answered. Errors: ErrBusy.
func (f *FS) drained(ctx context.Context, r *relay, s *serving) error {
	f.former = append(f.former, s)
	for len(f.former) > 0 {
		select {
		case <-f.former[0].done:
			f.former = f.former[1:]
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		}
	}
	<-r.done // s had the other end
	return nil
}

// Resume serves a paused view again, with the requests that have waited. After an error nobody
// does.
func (f *FS) Resume() error {
	s, r, _, err := f.replay(counting{f}, f.init, f.options)
	if err != nil {
		f.working <- struct{}{} // nothing works, and nothing is to be ended
		return err
	}
	f.handing.mu.Lock()
	all := f.handing.waiting
	f.handing.mu.Unlock()
	f.locks.GoOn()
	return f.begin(s, r, all)
}

// begin serves with a server that has answered the INIT.
func (f *FS) begin(s *serving, r *relay, all []*waiting) error {
	slices.SortStableFunc(all, func(a, b *waiting) int { return a.resume.Since.Compare(b.resume.Since) })
	f.handing.mu.Lock()
	f.handing.relay, f.handing.waiting = nil, nil
	f.handing.resumed = make(map[uint64]*waiting)
	for _, w := range all {
		w.came = make(chan struct{})
		if w.opens() {
			f.handing.resumed[w.header().Unique] = w
		} else {
			w.arrive() // nobody waits behind it
		}
	}
	f.handing.mu.Unlock()
	f.visits.goOn()
	f.serving.Store(s) // before the former one could be taken for the last
	f.pausing.Store(false)
	go r.run()
	f.serve(s)
	err := f.injectAll(r, all)
	if err == nil {
		err = handOver(context.Background(), f.device, s.number)
	}
	f.work()
	return err
}

// inLine bounds the wait for requests to stand in line again, in their order.
const inLine = 2 * time.Second

// injectAll gives the server the requests that have waited.
func (f *FS) injectAll(r *relay, all []*waiting) error {
	late := time.NewTimer(inLine)
	defer late.Stop()
	over := false
	for _, w := range all {
		if err := r.send(w.request); err != nil {
			return fmt.Errorf("a request that waits cannot be handed on: %w", err)
		}
		if !over {
			select {
			case <-w.came:
			case <-late.C:
				over = true // the volume does not answer, or there are thousands
			}
		}
		if w.interrupted() {
			if err := r.send(raw(interrupt(w.header().Unique))); err != nil {
				return err
			}
		}
	}
	return r.awaitRead()
}

// interrupt is the kernel's message that a request's caller got a signal.
func interrupt(unique uint64) *fuse.InterruptIn {
	const opcode = 36 // FUSE_INTERRUPT
	in := &fuse.InterruptIn{Unique: unique}
	in.Opcode, in.InHeader.Unique, in.Length = opcode, unique|1, uint32(unsafe.Sizeof(*in))
	return in
}

// handedOn is the status of a request that is not answered, but handed on. The library would send
// it as ERESTARTSYS.
const handedOn = fuse.Status(512)

// handOn keeps a request for the next server, and reports whether there will be one.
func (f *FS) handOn(in *fuse.InHeader, w *waiting, cancel <-chan struct{}) bool {
	f.handing.mu.Lock()
	defer f.handing.mu.Unlock()
	if f.handing.relay == nil {
		return false
	}
	w.cancel = cancel
	f.handing.relay.withhold(in.Unique)
	f.handing.waiting = append(f.handing.waiting, w)
	return true
}

// trying answers a request that cannot queue, or hands it on while it tries for a lock. It has
// changed nothing then. request returns its bytes.
func (f *FS) trying(cancel <-chan struct{}, in *fuse.InHeader, request func() []byte, do func() fuse.Status) fuse.Status {
	since := time.Now()
	for {
		s := do()
		if s != handedOn || f.handOn(in, &waiting{request: request(), resume: lockmgr.Resume{Since: since}}, cancel) {
			return s
		}
	}
}

// message returns the bytes of a request with names.
func message[T any](in *T, names ...string) []byte {
	b := raw(in)
	for _, name := range names {
		b = append(append(b, name...), 0)
	}
	(*fuse.InHeader)(unsafe.Pointer(&b[0])).Length = uint32(len(b))
	return b
}

// renaming returns the bytes of a RENAME, whose message is shorter than the library's, as RENAME2.
func renaming(in *fuse.RenameIn, from, to string) []byte {
	const opcode = 45 // FUSE_RENAME2
	b := message(in, from, to)
	(*fuse.InHeader)(unsafe.Pointer(&b[0])).Opcode = opcode
	return b
}

// resumed returns what was handed on with a request; nil: it is new.
func (f *FS) resumed(unique uint64) *waiting {
	f.handing.mu.Lock()
	defer f.handing.mu.Unlock()
	w := f.handing.resumed[unique]
	delete(f.handing.resumed, unique)
	return w
}
