package fs

import (
	"bytes"
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

// A connection is paused to be handed on: its server reads no more requests, and answers those that
// it has read. Requests that wait for a lock are not answered. Whoever serves the view next gets
// them again, as if from the kernel; OPEN and SETLKW go on where they stood in line (ADR 0050).

// handing keeps requests that wait for a lock: for the next server, or from the one before.
type handing struct {
	mu      sync.Mutex
	relay   *relay              // GUARDED_BY(mu); nil: the view is not paused
	waiting []*waiting          // GUARDED_BY(mu); requests to be handed on
	resumed map[uint64]*waiting // GUARDED_BY(mu); requests handed on to this server, until they come
}

// waiting is a request that waited for a lock when the view was paused: an OPEN or a SETLKW in line,
// or a try of a call that cannot queue.
type waiting struct {
	request   []byte
	visit     visit   // an OPEN's, as are sends, at and path
	sends     bool    // see opening; at and path are not used then
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

// queues reports whether the request may have stood in line.
func (w *waiting) queues() bool {
	const opcode = 33 // FUSE_SETLKW
	return w.opens() || w.header().Opcode == opcode
}

// interrupted reports whether the caller got a signal. Call it when the server that had the request
// has ended: a signal can come after the request was handed on.
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

// canPause returns an error if the connection cannot be paused at all.
func (c *connection) canPause() error {
	if c.device < 0 {
		return errors.New("the daemon is not root")
	}
	_, err := c.initAnswer()
	return err
}

// initAnswer returns the library's answer to the view's INIT: the same as the first time.
func (c *connection) initAnswer() ([]byte, error) {
	c.answering.Lock()
	defer c.answering.Unlock()
	if c.answer != nil {
		return c.answer, nil
	}
	s, err := c.replay(fuse.NewDefaultRawFileSystem()) // it only answers the INIT
	if err != nil {
		return nil, err
	}
	s.discard()
	c.answer = s.answer
	return c.answer, nil
}

// standby is a server that has answered the view's INIT. It reads a relay, not the kernel.
type standby struct {
	*serving
	relay  *relay
	answer []byte // to the INIT
}

// replay begins a server with the INIT that the view's first server had.
func (c *connection) replay(requests fuse.RawFileSystem) (*standby, error) {
	r, err := newRelay(c.device)
	if err != nil {
		return nil, err
	}
	s := &standby{relay: r}
	first := *c.init
	first.Length = uint32(unsafe.Sizeof(first))
	if err = r.send(raw(&first)); err == nil {
		s.serving, err = c.newServer(requests, r.theirs)
	}
	if err == nil {
		s.answer, err = r.receive()
	}
	if err == nil && (len(s.answer) < int(unsafe.Sizeof(fuse.OutHeader{})) || answerHeader(s.answer).Status != 0) {
		err = errors.New("the INIT was refused")
	}
	if err != nil {
		unix.Close(r.ours)
		return nil, fmt.Errorf("relay: %w", err)
	}
	return s, nil
}

// discard ends a standby that serves nothing.
func (s *standby) discard() {
	_ = unix.SetsockoptTimeval(s.number, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &readTimeout)
	s.server.Serve() // until the first read ends
	unix.Close(s.relay.ours)
}

// adopt begins a standby in another process than the first server, whose INIT and answer it takes.
func (c *connection) adopt(init, answer []byte) (*standby, error) {
	if len(init) != int(unsafe.Sizeof(fuse.InitIn{})) {
		return nil, fmt.Errorf("an INIT of %d bytes", len(init))
	}
	c.init = (*fuse.InitIn)(unsafe.Pointer(&init[0]))
	s, err := c.replay(c.requests)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(s.answer, answer) {
		s.discard()
		return nil, errors.New("the new daemon wants other features of the kernel than the former one")
	}
	return s, nil
}

// divert begins a pause: from now on handOn keeps requests. drain goes on with it, and begin ends it.
func (c *connection) divert() error {
	select {
	case <-c.ended:
		return errors.New("it is unmounted")
	default:
	}
	if c.pausing.Load() {
		return errors.New("it could not go on after the last pause")
	}
	r, err := newRelay(c.device)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptTimeval(r.theirs, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &readTimeout); err != nil {
		unix.Close(r.ours)
		unix.Close(r.theirs)
		return err
	}
	c.pausing.Store(true)
	c.handing.mu.Lock()
	c.handing.relay = r
	c.handing.mu.Unlock()
	return nil
}

// drain makes the server read the relay, and returns when all requests that it has read are
// answered or handed on. Errors: ErrBusy.
func (c *connection) drain(ctx context.Context) error {
	c.handing.mu.Lock()
	r := c.handing.relay
	c.handing.mu.Unlock()
	s := c.serving.Load()
	c.former = append(c.former, s)
	go r.run()
	err := handOver(ctx, r.theirs, s.number)
	unix.Close(r.theirs)
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
	}
	if err != nil {
		return err
	}
	for len(c.former) > 0 {
		select {
		case <-c.former[0].done:
			c.former = c.former[1:]
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrBusy, ctx.Err())
		}
	}
	<-r.done // s had the other end
	return nil
}

// begin serves with a standby, which gets the requests that were handed on before the kernel's. After
// an error the connection ends.
func (c *connection) begin(s *standby) error {
	all := c.takeWaiting()
	c.serving.Store(s.serving) // before the former one could be taken for the last
	c.pausing.Store(false)
	go s.relay.run()
	c.serve(s.serving)
	err := c.connect(s, all)
	if err != nil {
		c.fail(err, s.relay)
		s.relay.endReads()
	}
	return err
}

// connect gives a server that reads a relay what has waited, and then the kernel's requests.
func (c *connection) connect(s *standby, all []*waiting) error {
	if err := injectAll(s.relay, all); err != nil {
		return err
	}
	if c.resends { // before the server could read anything twice
		c.resends = false // what this process has read it answers itself, also after a pause
		if err := c.resend(); err != nil {
			return err
		}
	}
	return handOver(context.Background(), c.device, s.number)
}

// takeWaiting ends handing on, and returns what is handed on to this server, the oldest first.
func (c *connection) takeWaiting() []*waiting {
	h := &c.handing
	h.mu.Lock()
	defer h.mu.Unlock()
	all := h.waiting
	slices.SortStableFunc(all, func(a, b *waiting) int { return a.resume.Since.Compare(b.resume.Since) })
	h.relay, h.waiting, h.resumed = nil, nil, make(map[uint64]*waiting)
	for _, w := range all {
		w.came = make(chan struct{})
		if w.queues() {
			h.resumed[w.header().Unique] = w
		} else {
			w.arrive() // nobody waits behind it
		}
	}
	return all
}

// inLine bounds the wait for requests to stand in line again, in their order.
const inLine = 2 * time.Second

// injectAll gives the server the requests that have waited.
func injectAll(r *relay, all []*waiting) error {
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
func (c *connection) handOn(in *fuse.InHeader, w *waiting, cancel <-chan struct{}) bool {
	c.handing.mu.Lock()
	defer c.handing.mu.Unlock()
	if c.handing.relay == nil {
		return false
	}
	w.cancel = cancel
	c.handing.relay.withhold(in.Unique)
	c.handing.waiting = append(c.handing.waiting, w)
	return true
}

// trying answers a request that tries for a lock and cannot queue. If a pause ends the try, nothing
// is changed yet, and the request is handed on, or tried again if the pause is over. request
// returns its bytes.
func (c *connection) trying(cancel <-chan struct{}, in *fuse.InHeader, request func() []byte, do func() fuse.Status) fuse.Status {
	since := time.Now()
	for {
		s := do()
		if s != handedOn || c.handOn(in, &waiting{request: request(), resume: lockmgr.Resume{Since: since}}, cancel) {
			return s
		}
	}
}

// resumed returns what was handed on with a request; nil: it is new.
func (c *connection) resumed(unique uint64) *waiting {
	c.handing.mu.Lock()
	defer c.handing.mu.Unlock()
	w := c.handing.resumed[unique]
	delete(c.handing.resumed, unique)
	return w
}
