package fs

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/internal/journal/journaltest"
)

// journaled returns calls with a journal, and what can be read of it.
func journaled(t *testing.T) (c *calls, read func() map[uint64]CallState) {
	t.Helper()
	part, records := journaltest.Part(t)
	part.Number(recordFD, 1, 1) // a part is never empty
	c = &calls{record: part, log: slog.New(slog.DiscardHandler), own: make(map[uint64]slot)}
	return c, func() map[uint64]CallState {
		t.Helper()
		v := &recovery{}
		v.State = &State{}
		if err := v.calls(records()); err != nil {
			t.Fatal(err)
		}
		all := make(map[uint64]CallState)
		for _, s := range v.State.Calls {
			all[s.Request] = s
		}
		return all
	}
}

// What one daemon has begun, and the next has not answered either, the third one finds.
func TestFormerCallsAreKept(t *testing.T) {
	c, read := journaled(t)
	c.begun = map[uint64]*former{7: {CallState: CallState{Request: 7, What: uint8(appending), Size: 5}}}
	c.keep()
	if r := read()[7]; doing(r.What) != appending || r.Size != 5 || r.Answered {
		t.Errorf("after the takeover: %+v", r)
	}
	in := &fuse.InHeader{Unique: 7 | sentAgain}
	if b := c.again(in); b == nil || b.Size != 5 {
		t.Fatalf("it comes again as %+v", b)
	}
	if r, ok := read()[7]; !ok || r.Answered {
		t.Errorf("before the answer: %+v", r)
	}
	c.answer(in, fuse.OK, 3)
	if r := read()[7]; !r.Answered || r.Status != 0 || r.Written != 3 {
		t.Errorf("after the answer: %+v", r)
	}
	if c.again(in) != nil {
		t.Error("it comes twice")
	}
}

// A call that is tried again is one call.
func TestTriesAreOneCall(t *testing.T) {
	c, read := journaled(t)
	in := &fuse.InHeader{Unique: 7}
	for ino := range uint64(3) {
		c.begin(in, nil, callRecord{What: removing, Src: Inode{Ino: ino}})
		if r := read(); len(r) != 1 || r[7].Src.Ino != ino || r[7].Answered {
			t.Errorf("try %d: %+v", ino, r)
		}
	}
	c.answer(in, fuse.OK, 0)
	c.begin(&fuse.InHeader{Unique: 9}, nil, callRecord{What: removing})
	if r := read(); len(r) != 2 || !r[7].Answered || r[9].Answered {
		t.Errorf("after the answer, and another call: %+v", r)
	}
}

// Answers are kept for the kernel, and not for ever.
func TestAnswersAreForgotten(t *testing.T) {
	c, read := journaled(t)
	for n := range uint64(2*keptAnswers + 100) {
		in := &fuse.InHeader{Unique: n + 1}
		c.begin(in, nil, callRecord{What: removing})
		c.answer(in, fuse.ENOENT, uint32(n))
	}
	left := read()
	if len(left) != keptAnswers {
		t.Errorf("%d answers are kept, want %d", len(left), keptAnswers)
	}
	const last = 2*keptAnswers + 100
	if r := left[last]; !r.Answered || r.Status != int32(fuse.ENOENT) || r.Written != last-1 {
		t.Errorf("the last answer: %+v", r)
	}
	// One that was not recorded has nothing to keep.
	c.answer(&fuse.InHeader{Unique: 1 << 21}, fuse.OK, 0)
	if len(read()) != keptAnswers {
		t.Error("an answer without a call is kept")
	}
}

// A request is refused if it was there in several deaths in a row, and only then.
func TestDeadlyRequests(t *testing.T) {
	for _, k := range []struct {
		deaths int
		tries  uint64
		want   bool
	}{{0, 5, false}, {1, 1, false}, {2, 0, false}, {2, 1, true}, {3, 2, true}} {
		c, _ := journaled(t)
		c.deaths, c.tries = k.deaths, map[uint64]uint64{7: k.tries}
		if got := c.deadly(&fuse.InHeader{Unique: 7 | sentAgain}); got != k.want {
			t.Errorf("%d deaths, sent again %d times before: refused: %v", k.deaths, k.tries, got)
		}
		if c.deadly(&fuse.InHeader{Unique: 7}) {
			t.Error("a new request is refused")
		}
	}
}

// What a request was sent again for does not count while it waits for others, also if the daemon dies
// meanwhile.
func TestWaitingIsNotDeadly(t *testing.T) {
	const request = 7
	part, records := journaltest.Part(t)
	part.Number(recordFD, 1, 1) // a part is never empty
	recorded := func() uint64 {
		t.Helper()
		v := &recovery{}
		v.State = &State{}
		if err := v.calls(records()); err != nil {
			t.Fatal(err)
		}
		return v.State.Tries[request]
	}
	synctest.Test(t, func(t *testing.T) {
		c := &calls{record: part, log: slog.New(slog.DiscardHandler), deaths: 2, tries: make(map[uint64]uint64)}
		in := &fuse.InHeader{Unique: request | sentAgain}
		if c.deadly(in) {
			t.Fatal("the first time")
		}
		for took, want := range map[time.Duration]uint64{0: 1, waitsFrom / 2: 1, waitsFrom * 2: 0, time.Hour: 0} {
			c.wait(in, func() {
				time.Sleep(took)
				synctest.Wait()
				if n := recorded(); n != want {
					t.Errorf("after %v outside: %d, want %d", took, n, want)
				}
			})
			if n := recorded(); n != 1 {
				t.Errorf("back after %v: %d, want 1", took, n)
			}
		}
		if !c.deadly(in) {
			t.Error("the second time it is not refused")
		}
	})
}

// What a dead process has answered does not stay recorded once the kernel has sent again what it wants to,
// and nothing of it stays in the end.
func TestFormerAnswersAreForgotten(t *testing.T) {
	part, records := journaltest.Part(t)
	left := func() (calls, answers int) {
		r := records()
		return len(r.Pairs(recordAppend)), len(r.Pairs(recordAppended))
	}
	synctest.Test(t, func(t *testing.T) {
		c := &calls{record: part, log: slog.New(slog.DiscardHandler), own: make(map[uint64]slot), begun: make(map[uint64]*former), tries: make(map[uint64]uint64)}
		for request := range uint64(100) {
			c.begun[request] = &former{CallState: CallState{Request: request, What: uint8(appending), Answered: request != 50}}
		}
		c.keep()
		if calls, answers := left(); calls != 100 || answers != 99 {
			t.Fatalf("%d calls and %d answers are recorded", calls, answers)
		}
		c.resent.Store(true)
		again := &fuse.InHeader{Unique: 7 | sentAgain}
		c.arrives(again)
		c.arrives(&fuse.InHeader{Unique: 1000})
		time.Sleep(arrivesWithin)
		synctest.Wait()
		if calls, answers := left(); calls != 2 || answers != 1 {
			t.Errorf("with one answered call that has come again, and one without an answer: %d calls and %d answers", calls, answers)
		}
		if b := c.again(again); b == nil || !b.Answered {
			t.Error("the answer is lost to the request that has come again")
		}
		c.answer(again, fuse.OK, 0)
		c.forsake()
		if calls, answers := left(); calls != 1 || answers != 1 {
			t.Errorf("in the end there are %d calls and %d answers, want this process's", calls, answers)
		}
	})
}

// What has come again, and waits for the volume, keeps what the dead process has left of it, however long
// that takes.
func TestWhatWaitsIsNotForsaken(t *testing.T) {
	c, read := journaled(t)
	waits, absent, opens := uint64(7), uint64(9), uint64(11)
	c.begun, c.files = make(map[uint64]*former), map[uint64]*handle{opens: {}, absent: {}}
	for _, request := range []uint64{waits, absent} {
		c.begun[request] = &former{CallState: CallState{Request: request, What: uint8(appending), Size: 5}}
	}
	c.keep()
	c.arrives(&fuse.InHeader{Unique: waits | sentAgain})
	c.arrives(&fuse.InHeader{Unique: opens | sentAgain})
	c.forsake()
	if r := read(); len(r) != 1 || r[waits].Size != 5 {
		t.Errorf("recorded: %+v", r)
	}
	if c.again(&fuse.InHeader{Unique: waits | sentAgain}) == nil {
		t.Error("a call that waits is forgotten: it is made twice")
	}
	in := &fuse.InHeader{Unique: opens | sentAgain}
	if c.file(in) == nil {
		t.Error("a file that a request waits for is forgotten: it stays open, and locked")
	}
	c.ended(in)
	if c.again(&fuse.InHeader{Unique: absent | sentAgain}) != nil || len(c.begun)+len(c.files)+len(c.here) > 1 {
		t.Errorf("left: %v, %v, %v", c.begun, c.files, c.here)
	}
}
