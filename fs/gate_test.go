package fs

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// logBuffer is written to by timers.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// take returns what was written since it was called last.
func (l *logBuffer) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.b.Reset()
	return l.b.String()
}

// asker makes requests at a gate, as a user.
type asker struct {
	t    *testing.T
	gate *gate
	last uint64
}

// ask makes a request of a user, and returns its id and the way it ends, nil for
// inside.
func (a *asker) ask(uid uint32, cancel <-chan struct{}) (request uint64, entered <-chan error) {
	a.last++
	in := &fuse.InHeader{Unique: a.last}
	in.Uid = uid
	ch := make(chan error, 1)
	go func() { ch <- a.gate.enter(in, guest{}, cancel, nil) }()
	synctest.Wait()
	return in.Unique, ch
}

func (a *asker) wantLoad(what string, inside, waiting int) {
	a.t.Helper()
	synctest.Wait()
	if i, w := a.gate.load(); i != inside || w != waiting {
		a.t.Errorf("%s: %d inside and %d waiting, want %d and %d", what, i, w, inside, waiting)
	}
}

func testGate(t *testing.T, size int, gone func(*fuse.InHeader) bool, test func(t *testing.T, a *asker, log *logBuffer)) {
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		pays := func(in *fuse.InHeader) payer { return payer{uid: in.Uid} }
		a := &asker{t: t, gate: newGate(size, pays, gone, newBudget(backlogSize), slog.New(slog.NewTextHandler(&log, nil)))}
		defer a.gate.close()
		test(t, a, &log)
	})
}

// However many requests one caller makes, another one finds a place, and waiting
// callers take turns.
func TestGateIsShared(t *testing.T) {
	testGate(t, 16, nil, func(t *testing.T, a *asker, _ *logBuffer) {
		for range 100 {
			a.ask(1, nil)
		}
		a.wantLoad("one caller", 8+4, 88)
		for range 100 {
			a.ask(2, nil)
		}
		a.wantLoad("a second caller", 8+4+2, 88+98)
		_, third := a.ask(3, nil)
		if err := <-third; err != nil {
			t.Error(err)
		}
		a.wantLoad("a third caller", 8+4+2+1, 88+98)
		// What ends first are those of the first caller, which nobody counted.
		for request := range uint64(8) {
			a.gate.leave(request + 1)
		}
		a.wantLoad("in the end", 5+5+1, 186-4)
		inside := func(uid uint32) int { return a.gate.shares[payer{uid: uid}].inside }
		if one, two := inside(1), inside(2); one != two {
			t.Errorf("%d of the first and %d of the second caller", one, two)
		}
	})
}

// The kernel waits for nobody's share but its own.
func TestGateCountsTheKernelForItself(t *testing.T) {
	f := &callers{}
	root := &fuse.InHeader{}
	if f.payer(root) != (payer{kernel: true}) || f.payer(root) == f.payer(&fuse.InHeader{Caller: fuse.Caller{Pid: 1}}) {
		t.Error("root's programs share with the kernel")
	}
}

// A pod pays for all its users: one that is root in it may be any of them.
func TestPayerIsThePod(t *testing.T) {
	if payerOf("a", 1) != payerOf("a", 2) || payerOf("a", 1) == payerOf("b", 1) {
		t.Error("a pod's users have shares of their own, or two pods have one")
	}
	if payerOf("", 1) == payerOf("", 2) || payerOf("", 0) == payerOf("a", 0) {
		t.Error("outside of pods, users share with each other or with a pod")
	}
}

// A request whose caller is being killed leaves nothing behind, one whose caller is
// only interrupted stays.
func TestGateGivesUp(t *testing.T) {
	var dying atomic.Bool
	testGate(t, 4, func(*fuse.InHeader) bool { return dying.Load() }, func(t *testing.T, a *asker, _ *logBuffer) {
		first, _ := a.ask(1, nil)
		a.ask(1, nil)
		a.ask(1, nil)
		signal := make(chan struct{})
		_, waits := a.ask(1, signal)
		_, behind := a.ask(1, nil)
		a.wantLoad("at first", 3, 2)
		close(signal)
		a.wantLoad("interrupted", 3, 2)
		dying.Store(true)
		if err := <-waits; !errors.Is(err, errGivenUp) || errno(err) != fuse.EINTR {
			t.Errorf("killed: %v", err)
		}
		a.wantLoad("one is killed", 3, 1)
		a.gate.leave(first)
		if err := <-behind; err != nil {
			t.Error(err)
		}
		_, waits = a.ask(1, nil)
		a.gate.close()
		if err := <-waits; !errors.Is(err, errGivenUp) {
			t.Errorf("the view is gone: %v", err)
		}
	})
}

// The log says once that requests wait, and once that they do not any more.
func TestGateSaysThatItIsFull(t *testing.T) {
	testGate(t, 2, nil, func(t *testing.T, a *asker, log *logBuffer) {
		first, _ := a.ask(1, nil)
		for range 11 {
			a.ask(1, nil)
		}
		time.Sleep(fullFor - time.Second)
		synctest.Wait()
		if said := log.take(); said != "" {
			t.Errorf("too early: %s", said)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if said := log.take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "waiting=10 under_way=2") {
			t.Errorf("full: %s", said)
		}
		for request := range uint64(12) {
			a.gate.leave(first + request)
		}
		if said := log.take(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "seconds=64 most=10") {
			t.Errorf("not full any more: %s", said)
		}
	})
}

// What waits holds a bounded amount of memory, at all gates together: a caller who has
// his part of it is refused, and another one waits. Who was inside already, and comes
// back, is never refused.
func TestWaitingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pays := func(in *fuse.InHeader) payer { return payer{uid: in.Uid} }
		held := newBudget(8 * waiterSize)
		var log logBuffer
		gates := []*gate{
			newGate(2, pays, nil, held, slog.New(slog.NewTextHandler(&log, nil))),
			newGate(2, pays, nil, held, slog.New(slog.DiscardHandler)),
		}
		defer gates[0].close()
		defer gates[1].close()
		last := uint64(0)
		ask := func(g *gate, uid uint32, bytes int64) <-chan error {
			last++
			in := &fuse.InHeader{Unique: last}
			in.Uid = uid
			ch := make(chan error, 1)
			go func() { ch <- g.enter(in, guest{memory: bytes}, nil, nil) }()
			synctest.Wait()
			return ch
		}
		refused := func(ch <-chan error) bool {
			select {
			case err := <-ch:
				return errno(err) == fuse.Status(unix.ENOMEM)
			default:
				return false
			}
		}
		for _, g := range gates {
			ask(g, 9, waiterSize)
			ask(g, 9, waiterSize) // they are full
		}
		var waits []<-chan error
		for i := range 4 {
			waits = append(waits, ask(gates[i%2], 1, waiterSize))
		}
		for i, w := range waits {
			if refused(w) {
				t.Errorf("request %d of the first caller is refused", i)
			}
		}
		if !refused(ask(gates[0], 1, waiterSize)) {
			t.Error("the first caller's requests hold half of the memory, and one more may wait")
		}
		if refused(ask(gates[0], 2, 2*waiterSize)) {
			t.Error("a second caller may not wait")
		}
		if refused(ask(gates[0], 1, 0)) {
			t.Error("a request that was inside already is refused")
		}
		time.Sleep(fullFor)
		synctest.Wait()
		if said := log.take(); !strings.Contains(said, "refused=1") {
			t.Errorf("the log says %q", said)
		}
		for request := range last {
			gates[0].leave(request + 1)
			gates[1].leave(request + 1)
			synctest.Wait()
		}
		if held.free != 8*waiterSize || len(held.held) > 0 {
			t.Errorf("in the end %d bytes are free, and %v holds the others", held.free, held.held)
		}
	})
}

// Pages that are written back always wait: the kernel would lose them.
func TestWriteBackIsNeverRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := newBudget(8 * waiterSize)
		g := newGate(2, func(in *fuse.InHeader) payer { return payer{uid: in.Uid} }, nil, held, slog.New(slog.DiscardHandler))
		answers := make(chan error, 100)
		ask := func(request uint64, writesBack bool) {
			in := &fuse.InHeader{Unique: request}
			if !writesBack {
				in.Uid = 7
			}
			go func() { answers <- g.enter(in, guest{memory: waiterSize, insists: writesBack}, nil, nil) }()
			synctest.Wait()
		}
		for request := range uint64(22) {
			ask(request, true)
		}
		if len(answers) != 2 {
			t.Errorf("%d of 22 requests got in or were refused, want 2", len(answers))
		}
		for request := range uint64(5) { // half is the kernel's, and half of the rest a program's
			ask(100+request, false)
		}
		if len(answers) != 2+3 {
			t.Errorf("%d of 5 requests of a program were refused, want 3", len(answers)-2)
		}
		g.close()
		synctest.Wait()
		if held.free != 8*waiterSize {
			t.Errorf("in the end %d bytes are free", held.free)
		}
	})
}

// What a large request holds counts while it waits outside: for a lock, a session, or a notice.
func TestOutsideIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held := newBudget(6 * (waiterSize + maxWrite))
		g := newGate(64, func(in *fuse.InHeader) payer { return payer{uid: in.Uid} }, nil, held, slog.New(slog.DiscardHandler))
		release := make(chan struct{})
		waiting := 0
		ask := func(request uint64, who guest, leave func(context.Context, *fuse.InHeader, func()) error) <-chan error {
			in := &fuse.InHeader{Unique: request}
			answer := make(chan error, 1)
			go func() {
				_ = g.enter(in, who, nil, nil)
				err := leave(t.Context(), in, func() { waiting++; <-release })
				g.leave(in.Unique)
				answer <- err
			}()
			synctest.Wait()
			return answer
		}
		refused := func(answer <-chan error) bool {
			return len(answer) == 1 && errno(<-answer) == fuse.Status(unix.ENOMEM)
		}
		write, read := guest{memory: waiterBytes(4096, 0)}, guest{memory: waiterBytes(80, 1<<20)}
		for request := range uint64(3) {
			ask(request, write, g.outside)
		}
		for _, large := range []guest{write, read} {
			if !refused(ask(10, large, g.outside)) || waiting != 3 {
				t.Errorf("half of the memory is held, and one more waits: %d", waiting)
			}
		}
		if refused(ask(11, guest{memory: waiterBytes(smallRequest, 0)}, g.outside)) {
			t.Error("a small request is refused")
		}
		if refused(ask(12, write, g.mustOutside)) {
			t.Error("what has to be done is refused")
		}
		if refused(ask(13, guest{memory: write.memory, insists: true}, g.outside)) {
			t.Error("what is written back is refused")
		}
		close(release)
		synctest.Wait()
		if inside, _ := g.load(); inside != 0 || held.free != 6*(waiterSize+maxWrite) {
			t.Errorf("in the end %d are inside, and %d bytes free", inside, held.free)
		}
	})
}

// A request that go-fuse does not copy counts with the buffer that it was read into.
func TestWaiterBytes(t *testing.T) {
	for _, c := range []struct {
		length uint32
		answer int
		want   int64
	}{
		{48, 0, waiterSize},
		{smallRequest, 0, waiterSize},
		{smallRequest + 1, 0, waiterSize + maxWrite},
		{80, 4096, waiterSize + 4096},
	} {
		if n := waiterBytes(c.length, c.answer); n != c.want {
			t.Errorf("a request of %d bytes, with %d for its answer, counts as %d", c.length, c.answer, n)
		}
	}
	if none, some := backlogOf(math.MaxInt64), backlogOf(4<<30); none != backlogSize || some != 2<<30 {
		t.Errorf("without a limit %d, with one of 4 GiB %d", none, some)
	}
}

// Requests come, wait, are killed and go at random: there are never more inside
// than there may be, and none is lost.
func TestGateAtRandom(t *testing.T) {
	const size, requests = 8, 20000
	var inside, most atomic.Int64
	gone := func(*fuse.InHeader) bool { return true }
	g := newGate(size, func(in *fuse.InHeader) payer { return payer{uid: in.Uid} }, gone, newBudget(backlogSize), slog.New(slog.DiscardHandler))
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for n := range requests / 64 {
				in := &fuse.InHeader{Unique: uint64(i)<<32 | uint64(n)}
				in.Uid = uint32(r.IntN(4))
				var cancel chan struct{}
				if r.IntN(4) == 0 {
					cancel = make(chan struct{})
					go close(cancel)
				}
				if g.enter(in, guest{}, cancel, nil) != nil {
					continue
				}
				if now := inside.Add(1); now > most.Load() {
					most.Store(now)
				}
				inside.Add(-1)
				g.leave(in.Unique)
			}
		})
	}
	all.Wait()
	if i, w := g.load(); i != 0 || w != 0 || most.Load() > size || len(g.shares) > 0 || len(g.inside) > 0 || g.turns.Len() > 0 {
		t.Errorf("%d inside, %d waiting, %d at most, %d shares, %d turns", i, w, most.Load(), len(g.shares), g.turns.Len())
	}
}
