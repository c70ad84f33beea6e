package fs

import (
	"sync"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

const (
	// parkFor is how long a lock is kept for a caller that was sent to look
	// again. It comes back in microseconds, or was killed on the way.
	parkFor = time.Second
	// spentFor is how long a caller counts as having been sent: one system
	// call bears one ESTALE, a second one reaches the program.
	spentFor = 5 * time.Second
)

// parking keeps locks for callers that were answered ESTALE, so that the
// kernel looks the file up and opens it again: by thread and key, for
// another thread's open of the same file is another's.
type parking struct {
	mu    sync.Mutex
	spots map[parkKey]*spot // GUARDED_BY(mu)
}

type parkKey struct {
	tid  uint32
	key  lockmgr.Key
	mode lockmgr.Mode
}

// spot remembers one ESTALE, and the lock it left behind if there is one.
type spot struct {
	hold   *lockmgr.Hold
	timer  *time.Timer
	looked bool // the caller has looked something up since, and found it
	over   bool // the system call is: the program has got ESTALE or ENOENT
	here   bool // the caller has come back, and is not answered yet
}

// send notes that the caller is about to be answered ESTALE and keeps hold,
// which may be nil, for it. False means that it has had its ESTALE; hold then
// stays with the caller of send.
func (p *parking) send(k parkKey, hold *lockmgr.Hold) bool {
	if k.tid == 0 {
		return false // a caller in another PID namespace: it cannot be told from others
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spots[k] != nil {
		return false
	}
	s := &spot{hold: hold}
	for other := range p.spots {
		// If it was sent in this system call, for another file, this one gets through.
		s.over = s.over || other.tid == k.tid
	}
	if p.spots == nil {
		p.spots = make(map[parkKey]*spot)
	}
	p.spots[k] = s
	s.timer = time.AfterFunc(parkFor, func() { p.expire(k, s) })
	return true
}

// sendAgain sends a caller who has been sent before, and has looked since: it
// was told of another file than it comes for now, or this is another system
// call. After that the program has its ESTALE, and the next call may begin with
// what the kernel remembers, without a look: that is sent too. A caller who has
// not looked otherwise does not mean a name.
func (p *parking) sendAgain(k parkKey) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spots[k]
	if s == nil || !s.looked && !s.over || s.hold != nil {
		return false
	}
	s.looked, s.over = false, s.looked
	return true
}

// waiting reports whether anybody was sent to look.
func (p *parking) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.spots) > 0
}

// looked notes that a thread has looked a name up.
func (p *parking) looked(tid uint32, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.spots {
		if k.tid == tid {
			s.looked, s.over = found, !found
		}
	}
}

// forget needs mu.
func (p *parking) forget(k parkKey, s *spot) {
	if s.timer != nil {
		s.timer.Stop()
	}
	delete(p.spots, k)
}

// here notes whether a caller who may have been sent is here: it may wait in
// line for long, and that it was sent, for whatever file, is not forgotten
// meanwhile.
func (p *parking) here(tid uint32, here bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, s := range p.spots {
		if k.tid == tid {
			s.here = here
		}
	}
}

// expire lets a lock go that nobody came back for, and later forgets the spot.
func (p *parking) expire(k parkKey, s *spot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.spots[k] != s {
		return
	}
	if s.hold != nil {
		s.hold.Release()
		s.hold = nil
	}
	if s.timer == nil && !s.here {
		delete(p.spots, k)
		return
	}
	s.timer = nil
	time.AfterFunc(spentFor-parkFor, func() { p.expire(k, s) })
}

// take returns the lock that was kept for the caller, nil if there is none.
func (p *parking) take(k parkKey) *lockmgr.Hold {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.spots[k]
	if s == nil {
		return nil
	}
	hold := s.hold
	s.hold = nil
	return hold
}

// done forgets the caller's ESTALE: its system call has come to an end, and a
// lock that was parked for it, as when it opened and now created, is not needed.
func (p *parking) done(k parkKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.spots[k]; s != nil {
		if s.hold != nil {
			s.hold.Release()
		}
		p.forget(k, s)
	}
}
