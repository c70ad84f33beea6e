package fs

import (
	"context"
	"log/slog"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The gates of a view. A hung volume costs the process about as many OS threads as
// their sum, and 16 each for flushOnTrouble and for bereave.
const (
	volumeSize  = 256 // 192 for a single caller: a NFSv4.1 session of Linux has 64 slots
	closingSize = 64
	noticesSize = 32
	bereaving   = 16
	// familiesSize bounds who reads through /proc, which takes CPU time and no more.
	familiesSize = 8
)

// background is how many requests that no program waits for the kernel sends at once:
// reads ahead, among which are all that fill its cache, pages that are written back,
// and RELEASEs. They go one behind the other, so that with as many reads in a volume
// that hangs no closed file's lock is let go. Each read that waits has a buffer of
// 128 KiB.
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

// payer is who pays for a request.
func (cs *callers) payer(in *fuse.InHeader) payer {
	if in.Pid == 0 {
		return payer{uid: in.Uid, kernel: true}
	}
	p, _ := cs.cache.Lookup(int(in.Pid)) // no pod, if that cannot be told
	return payer{uid: in.Uid, pod: p.Pod}
}

// closes begins a close, which is never given up, and returns what ends it.
func (f *FS) closes(in *fuse.InHeader) func() {
	_ = f.closing.enter(in, nil)
	return func() { f.closing.leave(in.Unique) }
}

// atOnce has a request look from the beginning whether its caller is gone.
var atOnce = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (cs *callers) killed(in *fuse.InHeader) bool { return cs.procs.KillPending(int(in.Pid)) }

// exiting reports whether a FLUSH is one of a program's end, of which nobody wants
// to hear how it went.
func (cs *callers) exiting(in *fuse.InHeader) bool {
	return in.Pid != 0 && (cs.procs.Exiting(int(in.Pid)) || cs.killed(in))
}

// outside runs what may take long and is not work in the volume, and lets other
// requests in meanwhile. After an error, errGivenUp, the request is outside for
// good: it must not touch the volume, for which its thread might wait.
func (f *FS) outside(ctx context.Context, in *fuse.InHeader, wait func()) error {
	if !f.volume.leave(in.Unique) {
		wait()
		return nil
	}
	wait()
	return f.volume.reenter(ctx, in)
}
