package fs

import (
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// An OPEN names an inode, and does not say what the program did: it opened a
// name, which the kernel looked up now or up to cacheTimeout ago, or it reopened
// a descriptor, by /proc/self/fd. ESTALE tells: the kernel carries a system call
// through once more, and looks up each name of it then, whatever it remembers. A
// second ESTALE reaches the program. So the requests of one thread, of which a
// system call is the only one at a time, say what an OPEN or CREATE can be.
type stage uint8

const (
	// fresh: an ESTALE of now is the first of its system call, if that means a name.
	fresh stage = iota
	// unsure: a system call of its own, most likely, or the second try of one that
	// took long. It means a name, if it is the second try.
	unsure
	// retried: the second try of a system call. It has looked, and means the name
	// that it found.
	retried
	// nameless: it was sent to look, and did not: it reopens a descriptor.
	nameless
)

// parkFor is how long a lock is kept for a thread that was sent to look, and how
// long after an answer the thread's next request counts as of the same system
// call. It comes in microseconds, or the call has failed on the way.
const parkFor = time.Second

// maxSteps is more than paths have components.
const maxSteps = 64

// visits knows the threads whose last OPEN or CREATE was answered ESTALE, so
// that the kernel looks the file up and comes again, and keeps their locks.
type visits struct {
	mu      sync.Mutex
	threads map[uint32]*sent // GUARDED_BY(mu)
	sweepAt int              // len(threads) at which the dead are forgotten. GUARDED_BY(mu)
}

// sent is one ESTALE, and what its thread has done since.
type sent struct {
	stage  stage     // of the visit that was answered ESTALE
	node   uint64    // that it was for; 0 for a CREATE
	when   time.Time // of the thread's last answer
	looked bool      // it has looked something up since
	over   bool      // and that was not all of one system call
	found  uint64    // the node that it found last; 0 for none
	as     dirName   // the name that it looked up last
	meant  []dirName // by which a LINK may have named the file
	asked  []answer  // those of meant that it has looked up since
	way
	steps map[uint64]string // paths of what it has found on that way, the first maxSteps
	hold  *lockmgr.Hold
	mode  lockmgr.Mode
}

// answer is a name that was looked up, and the node that it led to; 0 for none.
type answer struct {
	dirName
	node uint64
}

// way is how a file was looked up: step by step, by path, from a directory that was
// not: the root, or one in which the program stands.
type way struct {
	from *node
	path string
}

// visit is one OPEN or CREATE.
type visit struct {
	tid   uint32
	node  uint64 // 0 for a CREATE
	stage stage
	way                 // of a second try; else it is not known, and from is nil
	hold  *lockmgr.Hold // that was parked for it, or is to be; nil if there is none
	mode  lockmgr.Mode
	meant []dirName // see sent
	as    dirName   // of a second try of a LINK: the name that it has looked up
}

// comeToLink begins a thread's LINK of a node to a name. Its second try has looked up
// that name in any case; it means a descriptor if it has looked up no other.
func (vs *visits) comeToLink(tid uint32, node uint64, to dirName) visit {
	v := visit{tid: tid, node: node, stage: fresh}
	if tid == 0 {
		v.stage = retried
		return v
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil {
		return v
	}
	v.hold, s.hold = s.hold, nil
	v.drop() // it was parked for an OPEN
	if s.meant == nil || s.stage != fresh || time.Since(s.when) >= parkFor {
		return v
	}
	byName := false
	for _, a := range s.asked {
		if !a.is(to) {
			byName = true
		}
		if a.node == node {
			v.stage, v.as = retried, a.dirName
			return v
		}
	}
	if s.node == node && !byName {
		v.stage = nameless
	}
	return v
}

// come begins a thread's OPEN of a node, or its CREATE (0): every one, and every
// one ends with leave.
func (vs *visits) come(tid uint32, node uint64) visit {
	v := visit{tid: tid, node: node, stage: fresh}
	if tid == 0 {
		v.stage = retried // it is in another PID namespace, and cannot be told from others
		return v
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil {
		return v
	}
	if v.stage = s.next(node); v.stage == retried {
		v.way = s.way
	}
	v.hold, v.mode, s.hold = s.hold, s.mode, nil
	return v
}

// next is the stage of the thread's OPEN of a node, or of its CREATE (0).
func (s *sent) next(node uint64) stage {
	soon := time.Since(s.when) < parkFor
	switch {
	case !s.looked && s.stage == fresh && soon && s.node == node && node != 0:
		return nameless
	case !s.looked || s.found != node:
		return fresh // a try that follows an ESTALE has looked for what it opens
	case s.over || !soon || s.stage == retried:
		return unsure
	}
	return retried
}

// maySend says whether an ESTALE of now is, most likely, the first of its system
// call, so that the thread comes back.
func (v *visit) maySend() bool { return v.stage == fresh || v.stage == unsure }

// fetch returns the lock that was parked for the visit, nil unless it is what is
// wanted now. It has no other keys then: a handle is to keep nobody from another name.
func (v *visit) fetch(owner lockmgr.Owner, scope policy.Scope, mode lockmgr.Mode, keys []lockmgr.Key) *lockmgr.Hold {
	hold := v.hold
	switch {
	case hold == nil || v.mode != mode || len(keys) == 0 || !covers(hold, keys):
		return nil
	case hold.Owner() != owner && scope != policy.ScopeHandle:
		return nil
	case hold.Check() != nil:
		return nil
	}
	v.hold = nil
	hold.Keep(keys)
	return hold
}

// drop releases a lock that was parked and is of no use: this visit may be about
// to wait for it.
func (v *visit) drop() {
	if v.hold != nil {
		v.hold.Release()
		v.hold = nil
	}
}

// leave ends a visit that is about to be answered with s. Its lock is parked if
// the thread is sure to come back, else released.
func (vs *visits) leave(v visit, s fuse.Status) {
	if s != stale || !v.maySend() {
		v.drop()
	}
	if v.tid == 0 {
		return
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if s != stale {
		delete(vs.threads, v.tid)
		return
	}
	now := &sent{stage: v.stage, node: v.node, when: time.Now(), hold: v.hold, mode: v.mode, meant: v.meant}
	if vs.threads == nil {
		vs.threads = make(map[uint32]*sent)
	}
	vs.threads[v.tid] = now
	if now.hold != nil {
		time.AfterFunc(parkFor, func() { vs.expire(now) })
	}
	vs.sweep()
}

// looked notes what a thread found under a name that it asked for at the time
// asked: a node, or 0. It reports whether the thread is on the way of a second try.
func (vs *visits) looked(tid uint32, asked time.Time, name dirName, node uint64) (sent bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil {
		return false
	}
	sent = asked.Sub(s.when) < parkFor
	// A system call that does not find a name ends there, or creates the file. But the
	// kernel asks again at once when a name that it remembered is gone, and the next
	// call by the same name means the same, if it does not begin in a directory.
	again := s.as == name && s.from.id == rootID
	if asked.Sub(s.when) >= parkFor || s.looked && s.found == 0 && node != 0 && !again {
		s.over = true
	}
	s.looked, s.when, s.found, s.as = true, time.Now(), node, name
	if slices.ContainsFunc(s.meant, name.is) {
		s.asked = append(s.asked, answer{name, node})
	}
	if dir, ok := s.steps[name.dir.id]; ok {
		s.path = dir + "/" + name.name
	} else {
		if s.from != name.dir {
			s.from, s.steps = name.dir, make(map[uint64]string)
		}
		s.path = name.name
	}
	if len(s.steps) < maxSteps {
		s.steps[node] = s.path
	}
	return sent
}

// expire lets a lock go that nobody came back for.
func (vs *visits) expire(s *sent) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if s.hold != nil {
		s.hold.Release()
		s.hold = nil
	}
}

// sweep forgets threads that have ended. It needs mu.
func (vs *visits) sweep() {
	if len(vs.threads) < max(vs.sweepAt, 64) {
		return
	}
	for tid, s := range vs.threads {
		if s.hold == nil && unix.Kill(int(tid), 0) == unix.ESRCH {
			delete(vs.threads, tid)
		}
	}
	vs.sweepAt = 2 * len(vs.threads)
}
