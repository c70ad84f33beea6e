// Package handover hands a served mount on to another process of the same machine and user, so
// that an upgrade of the daemon closes no open file (docs/adr/0050).
//
//	new daemon                                            old daemon
//	Dial       ── connects to its socket ──────────────►  Listen
//	Peer.Ask   ── hello: format, settings ─────────────►  compares; Offer.Pause
//	           ◄────────── refused: why, or the state ──
//	adopts     ◄────────── descriptors ─────────────────
//	Peer.Take  ── taken ───────────────────────────────►  the commit point
//	           ◄────────── yours, or withdrawn ─────────  Offer.Gone, or Offer.Resume
//	serves
//
// # Who owns the mount
//
// The old daemon, until it has sent 'yours'; the new one from then on. Neither closes the
// connection before, unless it dies or gives up:
//
//   - The new daemon ends before 'taken': the old one goes on.
//   - It ends after 'taken', and 'yours' cannot be sent: the old one goes on.
//   - It ends later: the mount is dead, as after any crash of a daemon.
//   - The old daemon takes longer than PauseTime, or waits longer than TakeTime, with what the
//     descriptors add to that, for 'taken': it goes on. The new one never reads 'yours', and gives up.
//   - The old daemon is stopped between 'taken' and 'yours': the new one waits for TakeTime. Then it
//     shuts its end for reading, and looks once more. Either 'yours' was sent, and the new daemon
//     has it; or it cannot be sent any more, and the old one goes on.
//   - The old daemon dies after it has sent its state, and has not gone on: the new one has the
//     mount. An end of the connection does not prove a death. The end of a pipe does, see life.
//   - It dies before: the mount is dead, as after any crash.
package handover

import "time"

// Format is the version of the messages and of the state. A daemon takes over from one of the same
// Format only.
const Format = 8

const (
	// PauseTime bounds the time until requests under way have ended, in each pause of the view.
	PauseTime = 2 * time.Second
	// TakeTime bounds the time from then until the new daemon has the state; it gets DescriptorTime more
	// for each descriptor. One takes 15 µs, and 500 µs on a machine that is very busy.
	TakeTime       = 3 * time.Second
	DescriptorTime = 250 * time.Microsecond
	// helloTime bounds the wait for a hello, and for an answer to it.
	helloTime = 10 * time.Second
)

// Longer in tests, which a slow machine may stop meanwhile.
var (
	takeTime       = TakeTime
	descriptorTime = DescriptorTime
	// successorTime bounds the wait for a daemon that has gone on from one that died when it was asked.
	successorTime = 5 * time.Second
)

// timeFor returns the time for n descriptors.
func timeFor(n int) time.Duration { return time.Duration(n) * descriptorTime }
