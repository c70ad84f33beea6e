package fs

import (
	"log/slog"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// reservation is a payer's right to an open file or directory. Without it the programs of one pod
// could use up the daemon's descriptors, and nobody else on the node could open a file.
type reservation struct {
	of    *budget // nil: none
	payer payer
}

// reserve makes a reservation for a caller, before anything is done for it. ENFILE: it has its
// share.
func (f *FS) reserve(in *fuse.InHeader) (reservation, fuse.Status) {
	r := reservation{f.nodes.pool.open, f.callers.payer(in)}
	if r.of.take(r.payer, 1) {
		return r, fuse.OK
	}
	s := fuse.Status(unix.ENFILE)
	if unlogged, ok := f.refusals.next(s, time.Now()); ok {
		f.log.Warn("open refused: its pod, or user, has its share of the daemon's descriptors open",
			slog.String("pod", r.payer.pod), slog.Uint64("uid", uint64(in.Uid)), slog.Int("unlogged", unlogged))
	}
	return reservation{}, s
}

// keep makes the reservation again in another process.
func (r *reservation) keep(of *budget) {
	r.of = of
	of.keep(r.payer, 1)
}

// move returns the reservation, and r loses it.
func (r *reservation) move() reservation {
	moved := *r
	r.of = nil
	return moved
}

// release ends the reservation, if it is one.
func (r *reservation) release() {
	if r.of != nil {
		r.of.give(r.payer, 1)
		r.of = nil
	}
}
