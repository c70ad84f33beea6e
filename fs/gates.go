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

func (f *FS) openGates(held *backlog) {
	f.volume = newGate(volumeSize, f.payer, f.killed, held, f.log)
	f.closing = newGate(closingSize, f.payer, f.exiting, held, f.log)
	f.notices = newGate(noticesSize, f.payer, f.killed, held, f.log)
	f.families = newGate(familiesSize, f.payer, f.killed, held, slog.New(slog.DiscardHandler))
	f.bereaved = make(chan struct{}, bereaving)
}

func (f *FS) shutGates() {
	for _, g := range []*gate{f.volume, f.closing, f.notices, f.families} {
		g.close()
	}
}

func (cs *callers) payer(in *fuse.InHeader) payer {
	if in.Pid == 0 {
		return payer{uid: in.Uid, kernel: true}
	}
	p, _ := cs.cache.Lookup(int(in.Pid)) // no pod if that is unknown
	return payer{uid: in.Uid, pod: p.Pod}
}

// closes begins a close, which is never given up, and returns what ends it.
func (f *FS) closes(in *fuse.InHeader) func() {
	_ = f.closing.enter(in, 0, nil, nil)
	return func() { f.closing.leave(in.Unique) }
}

// atOnce makes a request check at once whether its caller is gone.
var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (cs *callers) killed(in *fuse.InHeader) bool { return cs.procs.KillPending(int(in.Pid)) }

// exiting reports whether a FLUSH is of a program's exit: nobody waits for its result.
func (cs *callers) exiting(in *fuse.InHeader) bool {
	return in.Pid != 0 && (cs.procs.Exiting(int(in.Pid)) || cs.killed(in))
}
