package main

// The kept model: delegations of files. A mount keeps a lock that nobody else wants: the
// entry stays when the last owner has closed, and the next owner of the mount takes it over
// without a commit. Another mount's request recalls it. Requests want one key or two, to
// write or to read, or only try. Answers are lost, watches lose events, sessions end, and
// time passes.

const (
	keptMounts   = 3
	keptKeys     = 2
	keptPrograms = 4
	keptOwners   = 2 // how many owners one entry has tokens for (4096 in lockfs)
	keptFresh    = 1 // for how many ticks after it was sent a read of the recalls counts
)

type keptWorld struct {
	programs []keptProgram
	faults   int8 // how many answers and events are lost, and waits given up
	ends     int8 // how many sessions end, by a deadline or a death
	clock    bool // time passes
	shows    bool // an entry that is in use for long gets its holder
	mut      string
}

// keptProgram is constant. Each program is an owner. It does its requests in order, or
// leaves them out.
type keptProgram struct {
	mount int
	asks  []keptAsk
}

type keptAsk struct {
	keys   uint8
	kind   int8
	nested bool // what was opened before stays open
}

// How a request asks.
const (
	writes int8 = iota
	reads
	tries // it writes, and waits for no holder
)

// keptEntry is a mount's entry of a key in the service.
type keptEntry struct {
	rev  int8 // 0: none
	kind int8
	says bool // the mount has written its present holder
	told int8 // the newest recall that the mount had heard of then
	twin int8 // the revision of a second entry of the same acquisition
}

// The kinds of entries; their keys tell them apart.
const (
	plainEntry int8 = iota
	keptEntries
	sharedEntry
)

// keptSlot is a key on a mount.
type keptSlot struct {
	lock     int8
	rev, n   int8 // of the entry, and how many owners it has had
	keeps    bool
	recalled bool
	deletes  int8 // the revision of the entry that a delete on its way means
	tells    int8 // the same, of a put that tells the present holder
	telling  int8 // the newest recall that this put answers
	heard    int8 // the newest recall that the mount has heard of
	events   int8 // the newest that its watch has still to deliver
	read     int8 // the newest in the answer to its read
}

// The lock of a slot; none is 0.
const (
	lockHeld int8 = iota + 1
	lockIdle
	lockReleasing
)

type keptMount struct {
	entry        [keptKeys]keptEntry
	slot         [keptKeys]keptSlot
	line         [keptPrograms]int8 // program+1 of the mount's requests, in order of arrival
	fence, known int8
	lease        bool // the service has it
	valid        bool // the deadline has not passed
	fresh        int8 // ticks since the last answered read of the recalls was sent
	poll         int8 // the read that is under way
	pollAge      int8
}

// The read of the recalls that is under way; none is 0.
const (
	pollSent int8 = iota + 1
	pollRead
)

// What a program does, apart from idle, lookingHere, requesting, replied, unanswered,
// inLine and done.
const recalling = int8(60) // a try has recalled an entry

type keptCall struct {
	phase   int8
	next    int8  // in asks
	has     uint8 // keys that it has open
	got     uint8 // keys of the present request that it has already
	answer  int8
	sent    int8 // the fence that the Txn on its way compares
	recall  [keptKeys]int8
	age     int8 // ticks since its entry was put
	saw     bool // somebody else wanted or had its keys while it tried
	late    int8 // index+1 of a request whose Txn was given up and may yet be carried out
	lateFen int8
	drop    uint8 // keys whose entries are to be deleted in the background
}

// The answer to a Txn.
const (
	answerFence   int8 = iota // nothing was put, as the fence has moved
	answerPlaced              // our entries stand
	answerRefused             // somebody has the keys
	answerRecall              // the same, and an entry that may be kept was recalled
	answerGone                // the session has ended
)

type keptState struct {
	m      [keptMounts]keptMount
	p      [keptPrograms]keptCall
	rev    int8
	last   [keptKeys][2]int8 // the newest token: revision, number
	faults int8
	ends   int8
	wrong  int8 // index in keptWrongs
}

var keptWrongs = [...]string{
	1: "a local owner overtakes a waiter that its mount has heard of",
	2: "a local owner overtakes a waiter of two seconds",
	3: "a local owner overtakes one that came before",
	4: "the token of an owner is not larger than the one before",
	5: "a request is refused although nobody else wants the file",
	6: "a reader has a lock that no other reader can share",
	7: "granted ahead of an entry with a smaller create revision",
}

func (w *keptWorld) start() keptState {
	var s keptState
	for p := range s.p {
		s.p[p].phase = done
		if p < len(w.programs) && len(w.programs[p].asks) > 0 {
			s.p[p].phase = idle
		}
	}
	for _, p := range w.programs {
		m := &s.m[p.mount]
		m.lease, m.valid, m.fresh = true, true, keptFresh+1
	}
	return s
}

func (w *keptWorld) ask(s *keptState, p int) keptAsk { return w.programs[p].asks[s.p[p].next] }

// waiting reports whether a request of p is under way.
func (c *keptCall) waiting() bool { return c.phase != idle && c.phase != done }

// wants returns the keys that a program has, or asks for.
func (w *keptWorld) wants(s *keptState, p int) uint8 {
	c := &s.p[p]
	if c.waiting() {
		return c.has | w.ask(s, p).keys
	}
	return c.has
}

func (w *keptWorld) steps(s keptState, to func(keptState, step)) {
	next := func(who string) keptDo {
		return func(what string, maybe bool, f func(n *keptState)) {
			n := s
			f(&n)
			w.watch(&n)
			n.normalize(w)
			to(n, step{who, what, maybe})
		}
	}
	for p := range w.programs {
		w.program(&s, p, next("program "+string(rune('P'+p))+" on "+mountNames[w.programs[p].mount]))
	}
	for m := range s.m {
		w.mount(&s, m, next(mountNames[m]))
	}
	if w.clock {
		next("time")("a tick", false, func(n *keptState) { w.tick(n) })
	}
}

type keptDo func(what string, maybe bool, f func(n *keptState))

func (w *keptWorld) tick(s *keptState) {
	for m := range s.m {
		s.m[m].fresh = min(s.m[m].fresh+1, keptFresh+1)
		if s.m[m].poll != 0 {
			s.m[m].pollAge = min(s.m[m].pollAge+1, keptFresh+1)
		}
	}
	for p := range w.programs {
		if s.p[p].waiting() && s.p[p].recallable(s, w.programs[p].mount) {
			s.p[p].age = min(s.p[p].age+1, 2)
		}
	}
}

// recallable reports whether a request has an entry in line.
func (c *keptCall) recallable(s *keptState, m int) bool {
	return c.phase != lookingHere && (s.m[m].entry[0].rev != 0 || s.m[m].entry[1].rev != 0)
}
