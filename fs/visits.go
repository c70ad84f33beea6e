package fs

import (
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// An OPEN does not say whether the program has opened a name, which the kernel may have looked up
// some time before (cacheTimeout), or a descriptor, by /proc/self/fd. An answer of ESTALE shows
// which: the kernel repeats the system call, and looks up the names in it. This is what 'to send a
// thread to look' means. A second ESTALE reaches the program. A thread has one system call at a
// time, so its requests show at which stage an OPEN or CREATE is (ADR 0009).
type stage uint8

const (
	// fresh: for a call by name, an ESTALE now would be its first.
	fresh stage = iota
	// unsure: most likely fresh, but perhaps the second try, by name, of a slow call.
	unsure
	// retried: the second try of a call by name. The kernel has looked the name up.
	retried
	// nameless: the second try of a call by descriptor. The kernel has looked nothing up.
	nameless
)

// parkFor is how long a lock is kept for a thread sent to look. A repeated call takes
// microseconds.
const parkFor = time.Second

// createFor replaces parkFor after a lookup that has found nothing: the CREATE comes at once or
// never. If the kernel remembered the name, it looks it up twice before the CREATE. The time that
// such a lookup takes on a slow volume does not count.
const createFor = parkFor / 20

const (
	maxSteps = 64
	// maxStepBytes bounds a thread's paths: they are recorded at each lookup (docs/adr/0070), and thousands
	// of threads may be in deep directories.
	maxStepBytes = 16 << 10
)

// visits remembers the threads that were answered ESTALE, and keeps their locks until they come
// again.
type visits struct {
	mu      sync.Mutex
	threads map[uint32]*sent // GUARDED_BY(mu)
	sweepAt int              // len(threads) at which dead ones are forgotten. GUARDED_BY(mu)
	paused  time.Time        // since when threads cannot come again; zero: they can. GUARDED_BY(mu)
	record  *journal.Part    // constant; see record.go
}

// sent is an answer of ESTALE, and what its thread has done since.
type sent struct {
	request uint64    // that was answered ESTALE
	stage   stage     // of that visit
	node    uint64    // of the visit that was answered ESTALE; 0 for a CREATE
	when    time.Time // of the thread's last answer
	asking  bool      // a lookup of it is under way
	looked  bool      // it has looked something up since
	missed  int       // lookups since that have found nothing
	over    bool      // its lookups since then belong to more than one system call
	found   uint64    // the node that it found last; 0: none
	as      dirName   // the name that it looked up last
	meant   []dirName // the names by which a LINK may have meant the file
	asked   []answer  // those of meant that it has looked up since
	way
	steps map[uint64]string // node → path on that way, of the first maxSteps and maxStepBytes
	bytes int               // of steps
	hold  *lockmgr.Hold
	mode  lockmgr.Mode
	reads bool   // that visit opens to read, and takes no lock
	flags uint32 // then
	file  *fileToRead
}

// fileToRead is a file that was opened already when its name was looked up for a second try.
// Otherwise another node could replace the file between the lookup and the OPEN, and the program
// would see an error.
type fileToRead struct {
	node     uint64
	flags    uint32
	uid, gid uint32
	fd       int
}

func (r *fileToRead) close() {
	if r != nil {
		unix.Close(r.fd)
	}
}

// answer is a name that was looked up, and its node; 0: none.
type answer struct {
	dirName
	node uint64
}

// way is how a file was looked up: by path, from the root or the program's working directory.
type way struct {
	from *node
	path string
}

type visit struct {
	tid     uint32
	request uint64
	node    uint64 // 0 for a CREATE
	stage   stage
	way                   // of a second try; else from is nil
	hold    *lockmgr.Hold // parked for the visit, or to be parked; may be nil
	mode    lockmgr.Mode
	meant   []dirName // see sent
	as      dirName   // the name by which a second try has found the node; else as.dir is nil
	reads   bool      // see sent
	flags   uint32
	file    *fileToRead
}

// comeToLink begins a LINK. The second try of a LINK always looks up the new name. A LINK by
// descriptor looks up no other name.
func (vs *visits) comeToLink(tid uint32, request, node uint64, to dirName) visit {
	v := visit{tid: tid, request: request, node: node, stage: fresh}
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
	v.drop() // parked for an OPEN
	v.file, s.file = s.file, nil
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

// come begins each OPEN or truncation of a node, and each CREATE (0), of a thread. leave ends it.
func (vs *visits) come(tid uint32, request, node uint64) visit {
	v := visit{tid: tid, request: request, node: node, stage: fresh}
	if tid == 0 {
		v.stage = retried // another PID namespace's threads are indistinguishable
		return v
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil {
		return v
	}
	if v.stage = s.next(node); v.stage == retried {
		v.way, v.as = s.way, s.as
	}
	v.hold, v.mode, s.hold = s.hold, s.mode, nil
	v.file, s.file = s.file, nil
	return v
}

// next is the stage of the thread's OPEN of a node, or of its CREATE (0).
func (s *sent) next(node uint64) stage {
	soon := time.Since(s.when) < parkFor
	switch {
	case !s.looked && s.stage == fresh && soon && s.node == node && node != 0:
		return nameless
	case !s.looked || s.found != node:
		return fresh // a second try by name would have looked this node up
	case s.over || !soon || s.stage == retried:
		return unsure
	}
	return retried
}

// maySend reports whether an ESTALE now is most likely its system call's first.
func (v *visit) maySend() bool { return v.stage == fresh || v.stage == unsure }

// fetch returns the parked lock if it is wanted, without other keys: they would keep others out.
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

// drop releases a useless parked lock, for which the visit would wait.
func (v *visit) drop() {
	if v.hold != nil {
		v.hold.Release()
		v.hold = nil
	}
}

// fetchFile returns the descriptor of what the visit opens to read, or -1. A second try alone gets
// it: a later call may have other rights.
func (v *visit) fetchFile(in *fuse.OpenIn) int {
	r := v.file
	if r == nil || v.stage != retried || r.node != in.NodeId || r.flags != in.Flags || r.uid != in.Uid || r.gid != in.Gid {
		return -1
	}
	v.file = nil
	return r.fd
}

// dropFile closes a descriptor that the visit has no use for.
func (v *visit) dropFile() {
	v.file.close()
	v.file = nil
}

// leave ends a visit answered with s. Its lock is parked if the thread will come again.
func (vs *visits) leave(v visit, s fuse.Status) {
	v.dropFile()
	if s == handedOn {
		v.drop()
		return // the thread's request comes again
	}
	if s != stale || !v.maySend() {
		v.drop()
	}
	if v.tid == 0 {
		return
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if s != stale {
		if _, had := vs.threads[v.tid]; had {
			delete(vs.threads, v.tid)
			vs.note(v.tid)
		}
		return
	}
	now := &sent{request: v.request, stage: v.stage, node: v.node, when: time.Now(), hold: v.hold, mode: v.mode, meant: v.meant, reads: v.reads, flags: v.flags}
	if vs.threads == nil {
		vs.threads = make(map[uint32]*sent)
	}
	vs.threads[v.tid] = now
	vs.note(v.tid)
	if now.hold != nil {
		time.AfterFunc(parkFor, func() { vs.expire(now) })
	}
	vs.sweep()
}

// wasAnswered reports whether a request that is sent again was answered ESTALE by a daemon that died
// before the kernel had the answer. Its thread has not come again.
func (vs *visits) wasAnswered(in *fuse.InHeader) bool {
	if in.Unique&sentAgain == 0 {
		return false
	}
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[in.Pid]
	return s != nil && s.request == number(in)
}

// looks begins a lookup, and looked ends it.
func (vs *visits) looks(tid uint32) (asked time.Time) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if s := vs.threads[tid]; s != nil {
		s.asking = true
	}
	return time.Now()
}

// looked notes a lookup: a node, or 0. It reports whether the thread is in a second try.
func (vs *visits) looked(tid uint32, asked time.Time, name dirName, node uint64) (sent bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil {
		return false
	}
	sent = asked.Sub(s.when) < parkFor
	// If a lookup finds no name, its system call ends or creates the file. So the next lookup is
	// another call's. Two exceptions: the kernel repeats a lookup of a remembered name that is
	// gone; and the next call by the same way from the root means the same.
	again := s.as == name && s.from.id == rootID
	if asked.Sub(s.when) >= parkFor || s.looked && s.found == 0 && node != 0 && !again {
		s.over = true
	}
	s.asking, s.looked, s.when, s.found, s.as = false, true, time.Now(), node, name
	if slices.ContainsFunc(s.meant, name.is) {
		s.asked = append(s.asked, answer{name, node})
	}
	if dir, ok := s.steps[name.dir.id]; ok {
		s.path = dir + "/" + name.name
	} else {
		if s.from != name.dir {
			s.from, s.steps, s.bytes = name.dir, make(map[uint64]string), 0
		}
		s.path = name.name
	}
	if len(s.steps) < maxSteps && s.bytes < maxStepBytes {
		s.steps[node] = s.path
		s.bytes += len(s.path)
	}
	vs.note(tid)
	if node == 0 {
		s.missed++
		if missed := s.missed; s.hold != nil {
			time.AfterFunc(createFor, func() { vs.noCreate(s, missed) })
		}
	}
	return sent
}

// noCreate releases the lock of a thread that did not find a name, and then neither created it nor
// looked again.
func (vs *visits) noCreate(s *sent, missed int) {
	vs.mu.Lock()
	again := missed == 1 && (s.asking || s.missed > missed)
	vs.mu.Unlock()
	if !again {
		vs.expire(s)
	}
}

// reading returns the flags with which a thread is about to open a file to read, in its second try.
func (vs *visits) reading(tid uint32) (flags uint32, ok bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	s := vs.threads[tid]
	if s == nil || !s.reads {
		return 0, false
	}
	return s.flags, true
}

// keep keeps a file for the second try of a thread, in place of what was kept before. It closes
// nothing under mu: the volume may be slow.
func (vs *visits) keep(tid uint32, file *fileToRead) {
	vs.mu.Lock()
	s, before := vs.threads[tid], file
	if s != nil {
		before, s.file = s.file, file
	}
	vs.mu.Unlock()
	before.close()
	if s == nil {
		return
	}
	time.AfterFunc(parkFor, func() {
		vs.mu.Lock()
		late := s.file == file
		if late {
			s.file = nil
		}
		vs.mu.Unlock()
		if late {
			file.close()
		}
	})
}

func (vs *visits) expire(s *sent) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	if s.hold != nil && !vs.paused.IsZero() {
		time.AfterFunc(parkFor, func() { vs.expire(s) })
		return
	}
	if s.hold != nil {
		s.hold.Release()
		s.hold = nil
	}
}

// pause stops the time of the threads that were answered ESTALE.
func (vs *visits) pause() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.paused = time.Now()
}

// goOn ends pause.
func (vs *visits) goOn() {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	lasted := time.Since(vs.paused)
	for _, s := range vs.threads {
		s.when = s.when.Add(lasted)
	}
	vs.paused = time.Time{}
}

// sweep forgets threads that have ended. It needs mu.
func (vs *visits) sweep() {
	if len(vs.threads) < max(vs.sweepAt, 64) {
		return
	}
	for tid, s := range vs.threads {
		if s.hold == nil && s.file == nil && unix.Kill(int(tid), 0) == unix.ESRCH {
			delete(vs.threads, tid)
			vs.note(tid)
		}
	}
	vs.sweepAt = 2 * len(vs.threads)
}
