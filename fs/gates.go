package fs

import (
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The sizes of a view's gates: a hung volume costs about their sum in OS threads, and 32 more.
const (
	volumeSize  = 256 // a single caller gets 192: a NFSv4.1 session of Linux has 64 slots
	closingSize = 64
	noticesSize = 32
	bereaving   = 16
	// familiesSize is for reading /proc, which takes only CPU time.
	familiesSize = 8
)

// background limits the kernel's concurrent background requests: cache fills, write-back,
// RELEASEs, in order. If that many reads hang, no RELEASE comes, and closed files stay locked.
// Each waiting read has a buffer of 128 KiB.
const background = 1024

// gates bound what a view has under way in the volume.
type gates struct {
	volume   *gate         // for requests that work in the volume
	closing  *gate         // for closes, which release locks and must not wait for reads
	notices  *gate         // for notices that make the kernel send requests and wait for their answers
	families *gate         // see callers
	bereaved chan struct{} // bounds the number of handles that are told of a loss at once
}

func (cs *callers) newGates(held *budget, log *slog.Logger) gates {
	cs.families = newGate(familiesSize, cs.payer, cs.killed, held, slog.New(slog.DiscardHandler))
	gs := gates{
		volume:   newGate(volumeSize, cs.payer, cs.killed, held, log),
		closing:  newGate(closingSize, cs.payer, cs.exiting, held, log),
		notices:  newGate(noticesSize, cs.payer, cs.killed, held, log),
		families: cs.families,
		bereaved: make(chan struct{}, bereaving),
	}
	for _, g := range gs.all() {
		g.strays = &cs.strays
	}
	return gs
}

func (g *gates) all() []*gate { return []*gate{g.volume, g.closing, g.notices, g.families} }

func (g *gates) shut() {
	for _, gate := range g.all() {
		gate.close()
	}
}

func (cs *callers) payer(in *fuse.InHeader) payer {
	if in.Pid == 0 {
		return payer{uid: in.Uid, kernel: true}
	}
	p, _ := cs.cache.Lookup(int(in.Pid)) // no pod if that is unknown
	return payerOf(p.Pod, in.Uid)
}

// atOnce is a closed channel for enter: the request checks at once whether its caller is gone.
var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (cs *callers) killed(in *fuse.InHeader) bool { return cs.procs.KillPending(int(in.Pid)) }

// exiting reports whether a FLUSH comes from the exit of a program: nobody waits for its result.
func (cs *callers) exiting(in *fuse.InHeader) bool {
	return in.Pid != 0 && (cs.procs.Exiting(int(in.Pid)) || cs.killed(in))
}
