package fs

import (
	"container/list"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// A gate bounds the requests in the volume. Each blocks an OS thread while the volume does not
// answer, and Go ends a process with 10,000 threads. Others wait, as goroutines, for a place or
// until the caller is killed; they are refused if waiters hold too much memory.
//
// While less than half of the places are taken, anybody enters. Then a payer may have as many
// requests inside as there are free places: one alone gets half of the second half, two a third
// each. Waiting payers take turns.
type gate struct {
	log   *slog.Logger
	size  int
	payer func(*fuse.InHeader) payer
	gone  func(*fuse.InHeader) bool // whether the caller needs no answer any more
	held  *budget                   // of waiters, also at other gates

	strays *strays                              // nil: there are none
	waits  func(in *fuse.InHeader, wait func()) // runs what a request waits for outside

	mu     sync.Mutex
	free   int              // GUARDED_BY(mu)
	inside map[uint64]guest // GUARDED_BY(mu); by request
	shares map[payer]*share // GUARDED_BY(mu); of payers inside or waiting
	turns  list.List        // GUARDED_BY(mu); shares with waiters, the next one first

	waiting int         // GUARDED_BY(mu)
	polling int         // GUARDED_BY(mu); waiters that check whether their callers are being killed
	full    *time.Timer // GUARDED_BY(mu); logs a full gate; nil while nobody waits
	since   time.Time   // GUARDED_BY(mu); when full was set
	most    int         // GUARDED_BY(mu); maximum of waiting since then
	refused int         // GUARDED_BY(mu); since then

	shutting sync.Once
	shut     chan struct{} // closed when nobody may wait any more
}

// payer is whose share a request takes: a pod's, or elsewhere a user's. Root in a pod may be as many
// users as it likes.
type payer struct {
	pod    string
	uid    uint32 // 0 in a pod
	kernel bool   // no program, or one whose pid the daemon cannot see
}

func payerOf(pod string, uid uint32) payer {
	if pod != "" {
		return payer{pod: pod}
	}
	return payer{uid: uid}
}

// share is a payer's part of a gate.
type share struct {
	payer   payer
	inside  int
	waiting list.List     // of *waiter
	turn    *list.Element // in turns; nil while none waits
}

// guest is a request, which keeps its memory when it leaves the gate to wait for something else.
type guest struct {
	share   *share // nil: not counted
	memory  int64  // in bytes; 0: not counted
	insists bool   // it is never refused
}

// waiter is a request that waits at a gate.
type waiter struct {
	request  uint64
	guest    guest
	bytes    int64         // that count
	place    *list.Element // in share.waiting
	admitted chan struct{} // closed when it is inside
}

// fullFor is how long requests wait at a gate before the log says so.
const fullFor = 5 * time.Second

// errGivenUp: a request's caller is being killed at a gate, or the view is gone.
var errGivenUp = fmt.Errorf("given up at the gate: %w", context.Canceled)

func newGate(size int, pays func(*fuse.InHeader) payer, gone func(*fuse.InHeader) bool, held *budget, log *slog.Logger) *gate {
	g := &gate{log: log, size: size, payer: pays, gone: gone, held: held, free: size, shut: make(chan struct{})}
	g.waits = func(_ *fuse.InHeader, wait func()) { wait() }
	g.inside, g.shares = make(map[uint64]guest), make(map[payer]*share)
	return g
}

// enter lets a request in. While the request waits, its memory counts. Once cancel is closed (nil:
// never), enter polls gone (nil: g.gone), and gives up if that is true. Errors: errGivenUp, errBacklog.
func (g *gate) enter(in *fuse.InHeader, who guest, cancel <-chan struct{}, gone func(*fuse.InHeader) bool) error {
	return g.enterCounting(in, who, who.memory, cancel, gone)
}

// enterCounting is enter for a request of whose memory only bytes are to be counted.
func (g *gate) enterCounting(in *fuse.InHeader, who guest, bytes int64, cancel <-chan struct{}, gone func(*fuse.InHeader) bool) error {
	g.mu.Lock()
	who.share = nil
	if g.free > g.size/2 {
		g.free--
		g.inside[in.Unique] = who
		g.mu.Unlock()
		return nil
	}
	g.mu.Unlock()
	p := g.payer(in) // reads /proc
	g.mu.Lock()
	s := g.shares[p]
	if s == nil {
		s = &share{payer: p}
		g.shares[p] = s
	}
	who.share = s
	if s.turn == nil && s.inside < g.free {
		g.admit(in.Unique, who)
		g.mu.Unlock()
		return nil
	}
	bytes, ok := g.charge(p, who, bytes)
	if !ok {
		g.refused++
		g.drop(s)
		g.mu.Unlock()
		return errBacklog
	}
	w := g.queue(in.Unique, who, bytes)
	g.mu.Unlock()
	var strays <-chan struct{}
	if gone == nil {
		gone = g.gone
		if cancel != nil && in.Pid != 0 { // no signal is for the kernel
			strays = g.strays.some()
		}
	}
	return g.wait(w, in, cancel, strays, gone)
}

// charge counts memory that a payer's request holds while it waits. It returns what is counted, and
// whether the request may wait.
func (g *gate) charge(p payer, who guest, bytes int64) (counted int64, ok bool) {
	if g.held.take(p, bytes) {
		return bytes, true
	}
	return 0, who.insists
}

// reenter is enter for a request that is given up once ctx ends, and whose memory is not counted here.
func (g *gate) reenter(ctx context.Context, in *fuse.InHeader, who guest) error {
	return g.enterCounting(in, who, 0, ctx.Done(), func(*fuse.InHeader) bool { return true })
}

// outside runs wait outside of the gate. What a large request holds counts meanwhile. After an error the
// request must not touch the volume. Errors: errGivenUp; errBacklog, and then wait was not run.
func (g *gate) outside(ctx context.Context, in *fuse.InHeader, wait func()) error {
	g.mu.Lock()
	who := g.inside[in.Unique]
	g.mu.Unlock()
	if who.memory > waiterSize {
		p := g.payer(in)
		bytes, ok := g.charge(p, who, who.memory)
		if !ok {
			g.leave(in.Unique)
			return errBacklog
		}
		defer g.held.give(p, bytes)
	}
	return g.mustOutside(ctx, in, wait)
}

// mustOutside is outside for what has to be done, whatever memory the request holds.
func (g *gate) mustOutside(ctx context.Context, in *fuse.InHeader, wait func()) error {
	who, inside := g.leave(in.Unique)
	g.waits(in, wait)
	if !inside {
		return nil
	}
	return g.reenter(ctx, in, who)
}

// closes begins a close, which is never given up, and returns the function that ends it.
func (g *gate) closes(in *fuse.InHeader) func() {
	_ = g.enter(in, guest{}, nil, nil)
	return func() { g.leave(in.Unique) }
}

// notify sends a notice that may cause WRITEs, and waits for it while the caller waits.
func (g *gate) notify(ctx context.Context, in *fuse.InHeader, notice func()) error {
	if err := g.reenter(ctx, in, guest{}); err != nil {
		return err
	}
	request := in.Unique // in is gone with the caller
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer g.leave(request)
		notice()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// admit needs mu.
func (g *gate) admit(request uint64, who guest) {
	g.free--
	who.share.inside++
	g.inside[request] = who
}

// queue needs mu.
func (g *gate) queue(request uint64, who guest, bytes int64) *waiter {
	s := who.share
	w := &waiter{request: request, guest: who, bytes: bytes, admitted: make(chan struct{})}
	w.place = s.waiting.PushBack(w)
	if s.turn == nil {
		s.turn = g.turns.PushBack(s)
	}
	if g.waiting++; g.full == nil {
		g.since, g.most, g.refused = time.Now(), 0, 0
		g.full = time.AfterFunc(fullFor, g.sayFull)
	}
	g.most = max(g.most, g.waiting)
	return w
}

// unqueue needs mu.
func (g *gate) unqueue(w *waiter) {
	s := w.guest.share
	s.waiting.Remove(w.place)
	if s.waiting.Len() == 0 {
		g.turns.Remove(s.turn)
		s.turn = nil
	}
	g.held.give(s.payer, w.bytes)
	g.drop(s)
	if g.waiting--; g.waiting > 0 {
		return
	}
	if !g.full.Stop() {
		g.log.Warn("no request waits for the volume any more", slog.Float64("seconds", time.Since(g.since).Seconds()), slog.Int("most", g.most), slog.Int("refused", g.refused))
	}
	g.full = nil
}

// drop forgets an unused share. It needs mu.
func (g *gate) drop(s *share) {
	if s.inside == 0 && s.turn == nil {
		delete(g.shares, s.payer)
	}
}

func (g *gate) sayFull() {
	g.mu.Lock()
	waiting, inside, refused := g.waiting, g.size-g.free, g.refused
	g.mu.Unlock()
	g.log.Warn("the volume does not answer in time: requests wait for others that are under way in it",
		slog.Int("waiting", waiting), slog.Int("under_way", inside), slog.Int("refused", refused))
}

// wait returns when w is inside, or given up.
func (g *gate) wait(w *waiter, in *fuse.InHeader, cancel, strays <-chan struct{}, gone func(*fuse.InHeader) bool) error {
	var poll <-chan time.Time
	for {
		select {
		case <-w.admitted:
			return nil
		case <-g.shut:
			return g.giveUp(w)
		case <-strays:
			strays = nil
			defer g.polls()()
		case <-cancel:
			// The kernel reports one signal, and not which: SIGKILL may follow.
			cancel = nil
			defer g.polls()()
		case <-poll:
		}
		if gone(in) {
			return g.giveUp(w)
		}
		g.mu.Lock()
		poll = time.After(max(killPoll, time.Duration(g.polling)*killPollEach))
		g.mu.Unlock()
	}
}

// polls counts a waiter that polls, and returns the function that ends that.
func (g *gate) polls() func() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.polling++
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.polling--
	}
}

// giveUp takes out a waiter, which may be inside by now.
func (g *gate) giveUp(w *waiter) error {
	g.mu.Lock()
	select {
	case <-w.admitted:
		g.mu.Unlock()
		g.leave(w.request)
	default:
		g.unqueue(w)
		g.mu.Unlock()
	}
	return errGivenUp
}

// leave takes a request out; ok: it was inside.
func (g *gate) leave(request uint64) (who guest, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	who, ok = g.inside[request]
	if !ok {
		return who, false
	}
	delete(g.inside, request)
	g.free++
	if s := who.share; s != nil {
		s.inside--
		g.drop(s)
	}
	for e := g.turns.Front(); e != nil; {
		s := e.Value.(*share)
		if s.inside >= g.free {
			e = e.Next()
			continue
		}
		w := s.waiting.Front().Value.(*waiter)
		g.turns.MoveToBack(e)
		g.admit(w.request, w.guest)
		g.unqueue(w)
		close(w.admitted)
		e = g.turns.Front()
	}
	return who, true
}

// close gives up all waiting requests, and all later ones that would have to wait.
func (g *gate) close() { g.shutting.Do(func() { close(g.shut) }) }

func (g *gate) load() (inside, waiting int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.size - g.free, g.waiting
}
