package fs

import (
	"bytes"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/lockmgr"
)

// When a daemon has died, the kernel sends the requests that it has not answered to the next one.
// Most can be done twice. One that cannot is recorded right before its system call, with what shows
// later whether the call was made, and again with its answer. The next daemon gives the recorded
// answer, or looks at the volume. Until then it has the call's locks, so that nobody else changes
// what it looks at (docs/adr/0070).

// doing is what a request is about to do.
type doing uint8

const (
	removing   doing = iota // the name from, of the file src, is removed
	linking                 // the file src gets the name to
	moving                  // the file src, named from, is renamed to to, which was the name of dst or of nothing
	exchanging              // src and dst exchange their names from and to
	making                  // to, which is no name yet, is made, of Kind
	appending               // the file, whose size was Size, grows
	addingAttr              // an attribute is made
	losingAttr              // an attribute is removed
	telling                 // an error that the program is told only once
)

type callRecord struct {
	_        struct{} `cbor:",toarray"`
	Request  uint64
	What     doing
	Hold     uint64 // of Hold.Record; 0: none
	From, To calledName
	Src, Dst Inode
	Size     int64  `cbor:"-"` // of an append, which is recorded as two numbers
	Kind     uint32 // of what is made
}

type calledName struct {
	_    struct{} `cbor:",toarray"`
	Dir  uint64   // the id of the node
	Name string
	Kind lockmgr.Kind // of the key
	Path string       // of the key
}

func (n *lockedName) called() calledName {
	return calledName{Dir: n.dir.id, Name: n.name, Kind: n.key.Kind, Path: n.key.Path}
}

// CallState is a call that a dead process has begun.
type CallState struct {
	Request  uint64
	What     uint8
	Hold     int // -1: none
	From, To Name
	Keys     [2]lockmgr.Key // of From and To
	Src, Dst Inode
	Size     int64
	Kind     uint32
	Answered bool
	Status   int32
	Written  uint32
}

// former is a call that a dead process has begun, until it comes again.
type former struct {
	CallState
	hold     *lockmgr.Hold
	from, to lockedName
	slot     slot // in this process's journal
	came     bool // GUARDED_BY(calls.mu); it has come again, and again() was not called yet
}

// record is the call's record in this process's journal: this process may die too.
func (b *former) record() callRecord {
	r := callRecord{Request: b.Request, What: doing(b.What), Src: b.Src, Dst: b.Dst, Size: b.Size, Kind: b.Kind}
	if b.hold != nil {
		r.Hold = b.hold.Record()
	}
	if b.from.dir != nil {
		r.From = b.from.called()
	}
	if b.to.dir != nil {
		r.To = b.to.called()
	}
	return r
}

// sentAgain marks a request that the kernel sends again.
const sentAgain = 1 << 63

// number is a request's number, which is the same when it is sent again.
func number(in *fuse.InHeader) uint64 { return in.Unique &^ sentAgain }

// keptAnswers is how many answers stay recorded: so many that the kernel has got each long before a
// later one takes its slot.
const keptAnswers = 4096

// slot is where a call and its answer are recorded, in place of a call that was answered long ago.
type slot struct {
	call, answer journal.Kind
	id           uint64
}

// slots are the slots for one kind of call.
type slots struct {
	made uint64
	free []uint64 // the slot whose call was answered first comes first
}

func (s *slots) take() uint64 {
	if len(s.free) < keptAnswers {
		s.made++
		return s.made
	}
	id := s.free[0]
	s.free = s.free[1:]
	return id
}

const (
	// comesWithin bounds the time in which the kernel sends again the requests without an answer.
	comesWithin = 30 * time.Second
	// arrivesWithin bounds the time between the moments at which the library has read a request and
	// arrives is called.
	arrivesWithin = 2 * time.Second
	arrivesTick   = 50 * time.Millisecond
)

// calls are the requests that cannot be done twice.
type calls struct {
	record *journal.Part // constant
	log    *slog.Logger  // constant
	deaths int           // constant; see Config.Deaths

	mu      sync.Mutex
	own     map[uint64]slot // GUARDED_BY(mu); recorded calls of this process, under way, by request
	named   slots           // GUARDED_BY(mu); of calls about names and attributes
	appends slots           // GUARDED_BY(mu)

	// What the former process has left, until comesWithin. GUARDED_BY(mu)
	begun map[uint64]*former    // by request
	files map[uint64]*handle    // by the request that has opened it
	dirs  map[uint64]*dirHandle // by the request that has opened it
	tries map[uint64]uint64     // how often a request was sent again before
	here  map[uint64]bool       // requests that have come again, and are not answered

	resent atomic.Bool // what is sent again comes first, and nothing else has come yet
}

// begin records a call. It comes before the check of the lock.
func (c *calls) begin(in *fuse.InHeader, hold *lockmgr.Hold, r callRecord) {
	if !c.record.Keeps() {
		return
	}
	if hold != nil {
		r.Hold = hold.Record()
	}
	r.Request = number(in)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, tried := c.own[r.Request]
	if !tried {
		at = c.take(r)
		c.own[r.Request] = at
	}
	c.put(r, at)
}

// take returns a slot for a call. mu is held.
func (c *calls) take(r callRecord) slot {
	if r.What == appending {
		return slot{recordAppend, recordAppended, c.appends.take()}
	}
	return slot{recordCall, recordAnswer, c.named.take()}
}

// put records a call. mu is held. An append is recorded as two numbers, which cost less.
func (c *calls) put(r callRecord, at slot) {
	if at.call == recordAppend {
		c.record.Pair(at.call, at.id, r.Request, uint64(r.Size))
	} else {
		c.record.Put(at.call, at.id, r)
	}
}

// release lets a later call have the slot. mu is held.
func (c *calls) release(at slot) {
	if at.call == recordAppend {
		c.appends.free = append(c.appends.free, at.id)
	} else {
		c.named.free = append(c.named.free, at.id)
	}
}

// answer records the answer to a request, if its call was recorded. The kernel gets it next.
func (c *calls) answer(in *fuse.InHeader, s fuse.Status, written uint32) {
	if !c.record.Keeps() {
		return
	}
	request := number(in)
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ok := c.own[request]
	if !ok {
		return
	}
	delete(c.own, request)
	if s == handedOn { // it is tried again, by this process or the next: nothing was done
		c.record.Delete(at.call, at.id)
		c.record.Delete(at.answer, at.id)
		c.release(at)
		return
	}
	c.record.Pair(at.answer, at.id, request, packAnswer(int32(s), written))
	c.release(at)
}

func packAnswer(status int32, written uint32) uint64 {
	return uint64(uint32(status))<<32 | uint64(written)
}

func unpackAnswer(n uint64) (status int32, written uint32) { return int32(uint32(n >> 32)), uint32(n) }

// keep records what a former process has begun.
func (c *calls) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for request, b := range c.begun {
		r := b.record()
		b.slot = c.take(r)
		c.put(r, b.slot)
		if b.Answered {
			c.record.Pair(b.slot.answer, b.slot.id, request, packAnswer(b.Status, b.Written))
		}
	}
	for request, n := range c.tries {
		c.record.Number(recordTries, request, n)
	}
}

// arrives notes each request as soon as it is read. The kernel sends all its repeated requests
// before any new one. So once a new request has come, a call that was answered and was not repeated
// will not be: the kernel has its answer.
func (c *calls) arrives(in *fuse.InHeader) {
	if in.Unique&sentAgain != 0 {
		c.mu.Lock()
		if b := c.begun[number(in)]; b != nil {
			b.came = true
		}
		if c.files != nil || c.dirs != nil {
			if c.here == nil {
				c.here = make(map[uint64]bool)
			}
			c.here[number(in)] = true
		}
		c.mu.Unlock()
	} else if c.resent.Load() && c.resent.CompareAndSwap(true, false) {
		go func() {
			awake(arrivesWithin)
			c.forget(func(b *former) bool { return b.Answered && !b.came })
		}()
	}
}

// awake returns when the process has run for a time. It sleeps in short steps, so that a time in
// which the process was stopped does not count.
func awake(lasts time.Duration) {
	for range lasts / arrivesTick {
		time.Sleep(arrivesTick)
	}
}

// ended ends a request that has come again.
func (c *calls) ended(in *fuse.InHeader) {
	if in.Unique&sentAgain == 0 {
		return
	}
	request := number(in)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.here, request)
	delete(c.files, request)
	delete(c.dirs, request)
}

// forget lets go of former calls.
func (c *calls) forget(which func(*former) bool) {
	var over []*former
	c.mu.Lock()
	for request, b := range c.begun {
		if !which(b) {
			continue
		}
		delete(c.begun, request)
		over = append(over, b)
		if c.record.Keeps() {
			c.record.Delete(b.slot.call, b.slot.id)
			c.record.Delete(b.slot.answer, b.slot.id)
			c.release(b.slot)
		}
	}
	c.mu.Unlock()
	for _, b := range over {
		b.over()
	}
}

// again returns what the former process has begun of a request that is sent again; nil: nothing.
func (c *calls) again(in *fuse.InHeader) *former {
	if in.Unique&sentAgain == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	request := number(in)
	b := c.begun[request]
	delete(c.begun, request)
	if b != nil && c.record.Keeps() {
		c.own[request] = b.slot // until the request is answered
	}
	return b
}

// over ends the use of what again has returned: the former call's locks are not needed any more.
func (b *former) over() {
	if b != nil && b.hold != nil {
		b.hold.Release()
	}
}

// file returns what the former process has opened for a request that is sent again.
func (c *calls) file(in *fuse.InHeader) *handle {
	if in.Unique&sentAgain == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.files[number(in)]
}

func (c *calls) dir(in *fuse.InHeader) *dirHandle {
	if in.Unique&sentAgain == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dirs[number(in)]
}

// deadly reports whether a request was under way when each of several daemons died, one soon after the
// other: it may be what kills them.
func (c *calls) deadly(in *fuse.InHeader) bool {
	if in.Unique&sentAgain == 0 || !c.record.Keeps() {
		return false
	}
	request := number(in)
	n := c.try(request, 1)
	if n < 2 || c.deaths < 2 {
		return false
	}
	c.log.Error("a request is refused: daemons have died while they served it", slog.Uint64("request", request),
		slog.Uint64("opcode", uint64(in.Opcode)), slog.Uint64("pid", uint64(in.Pid)), slog.Uint64("times", n))
	return true
}

// try adds to the number of times that a request was sent again, and returns it.
func (c *calls) try(request uint64, times int64) uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.tries[request] + uint64(times)
	if c.tries != nil {
		c.tries[request] = n
		c.record.Number(recordTries, request, n)
	}
	return n
}

// waitsFrom is how long a request goes on with the lock service, unless it waits for another owner.
const waitsFrom = 50 * time.Millisecond

// wait runs what a request does outside of the volume. While it waits there for others, it is not what
// kills daemons.
func (c *calls) wait(in *fuse.InHeader, wait func()) {
	if in.Unique&sentAgain == 0 || !c.record.Keeps() {
		wait()
		return
	}
	request := number(in) // in is gone with the caller
	waits := time.AfterFunc(waitsFrom, func() { c.try(request, -1) })
	wait()
	if !waits.Stop() {
		c.try(request, 1)
	}
}

// forsake lets go of what has not come again: its program has ended. What has come may still wait for the
// volume.
func (c *calls) forsake() {
	c.forget(func(b *former) bool { return !b.came })
	c.mu.Lock()
	defer c.mu.Unlock()
	for request := range c.tries {
		c.record.Delete(recordTries, request)
	}
	absent := func(request uint64) bool { return !c.here[request] }
	maps.DeleteFunc(c.files, func(request uint64, _ *handle) bool { return absent(request) })
	maps.DeleteFunc(c.dirs, func(request uint64, _ *dirHandle) bool { return absent(request) })
	c.tries = nil
}

// repeat answers a request about names that is sent again, if its call was made. out, unless nil, gets
// the name that the call gives.
func (f *FS) repeat(in *fuse.InHeader, out *fuse.EntryOut) (s fuse.Status, known bool) {
	b := f.calls.again(in)
	if b == nil {
		return fuse.OK, false
	}
	defer b.over()
	switch {
	case b.Answered:
		s = fuse.Status(b.Status)
	case b.unknown(): // what stands there may be somebody else's doing
		return fuse.EIO, true
	case f.wasMade(b):
		f.catchUpWith(b)
	default:
		return fuse.OK, false
	}
	if s.Ok() && out != nil {
		s = f.enter(b.to.dir, b.to.name, out)
	}
	return s, true
}

// unknown reports whether the call's locks are lost: nobody can tell then whether it was made.
func (b *former) unknown() bool { return b.hold != nil && b.hold.Lost() }

// wasMade reports whether a call about names was made, as the volume shows it.
func (f *files) wasMade(b *former) bool {
	name := b.to.dirName
	if doing(b.What) == removing {
		name = b.from.dirName
	}
	if name.dir == nil { // the kernel has forgotten the directory
		return false
	}
	st, err := f.backing.statNow(name)
	isSrc := err == nil && inodeOf(&st) == inode{b.Src.Dev, b.Src.Ino, b.Src.Generation}
	switch doing(b.What) {
	case removing:
		return err == unix.ENOENT || err == nil && !isSrc
	case linking, moving, exchanging: // src had another name before
		return isSrc
	case making:
		return err == nil && st.Mode&unix.S_IFMT == b.Kind
	}
	return false
}

// catchUpWith has the nodes and their locks follow a call that was made.
func (f *FS) catchUpWith(b *former) {
	var fates []fate
	src, dst := f.nodes.find(inode{b.Src.Dev, b.Src.Ino, b.Src.Generation}), f.nodes.find(inode{b.Dst.Dev, b.Dst.Ino, b.Dst.Generation})
	switch doing(b.What) {
	case removing:
		fates = []fate{{file: src, loses: &b.from}}
	case linking:
		fates = []fate{{file: src, gets: &b.to}}
	case moving:
		fates = []fate{{file: src, loses: &b.from, gets: &b.to}, {file: dst, loses: &b.to}}
	case exchanging:
		fates = []fate{{file: src, loses: &b.from, gets: &b.to}, {file: dst, loses: &b.to, gets: &b.from}}
	}
	for _, t := range fates {
		if t.file == nil {
			continue
		}
		if t.gets == nil || !f.nodes.nameOf(t.file).is(t.gets.dirName) { // else it has followed already
			f.follow(t, nil, true, true)
		}
		if t.loses != nil {
			drop(t.file.allHolds(), t.loses.key)
		}
		f.nodes.answered(t)
	}
}

// appended answers an append that is sent again, if it was made.
func (f *FS) appended(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (written uint32, s fuse.Status, known bool) {
	b := f.calls.again(&in.InHeader)
	if b == nil {
		return 0, fuse.OK, false
	}
	defer b.over()
	if b.Answered {
		return b.Written, fuse.Status(b.Status), true
	}
	h := f.handles.get(in.Fh)
	if h == nil || !h.enter() {
		return 0, ended, true
	}
	defer h.leave()
	n := int64(h.hasAppended(b.Size, data))
	if n == 0 {
		return 0, fuse.OK, false
	}
	s = f.change(cancel, &in.InHeader, h, func(check func() error) error { // so that it is on the volume as --sync says
		if n == int64(len(data)) {
			return check()
		}
		// The death has cut it, and the rest belongs behind.
		more, err := h.write(in, data[n:], wanted(in), check)
		n += int64(more)
		if err == unix.ENOSPC || err == unix.EDQUOT || err == unix.EFBIG {
			return nil // a part is written, as without the death
		}
		return err
	})
	h.node.wrote(b.Size + n)
	return uint32(n), s, true
}

// beginAppend records an append.
func (f *FS) beginAppend(in *fuse.InHeader, h *handle) {
	var st unix.Stat_t
	if f.record.Keeps() && fstat(h.fd, &st) == nil {
		f.calls.begin(in, nil, callRecord{What: appending, Size: st.Size})
	}
}

// hasAppended returns how much of data stands in the file, which had a size before: all of it, somewhere
// behind; or, at the end of a file that no other owner can write, a part that the death has cut.
func (h *handle) hasAppended(size int64, data []byte) int {
	locked := h.hold != nil && !h.hold.Unlocked()
	behind, err := h.readBehind(size)
	switch {
	case err != nil && locked: // root may not read it (NFS): the size alone must say
		var st unix.Stat_t
		if fstat(h.fd, &st) == nil {
			return int(min(max(st.Size-size, 0), int64(len(data))))
		}
	case bytes.Contains(behind, data):
		return len(data)
	case locked && bytes.HasPrefix(data, behind):
		return len(behind)
	}
	return 0
}

// readBehind reads what a file has behind an offset. The handle may be for writing only.
func (h *handle) readBehind(off int64) ([]byte, error) {
	fd, err := unix.Open(procPath(h.fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	const most = 4 << 20
	buf := make([]byte, most)
	n, err := ignoringEINTR(func() (int, error) { return unix.Pread(fd, buf, off) })
	return buf[:max(n, 0)], err
}
