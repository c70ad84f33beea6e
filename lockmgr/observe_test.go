package lockmgr_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// observer keeps what a Manager tells.
type observer struct {
	mu   sync.Mutex
	seen []lockmgr.Event
}

func (o *observer) add(e lockmgr.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen = append(o.seen, e)
}

// events returns those of one type, after all that is due has happened.
func events[T lockmgr.Event](o *observer) (found []T) {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.seen {
		if e, ok := e.(T); ok {
			found = append(found, e)
		}
	}
	return found
}

const slowWait = 10 * time.Second

// inObservedBubble is inBubble with a Manager that is watched, and logs all.
func inObservedBubble(t *testing.T, test func(f *fixture, o *observer)) {
	inBubble(t, func(f *fixture) {
		var o observer
		if err := f.m.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.m, f.log = f.manager(func(c *lockmgr.Config) {
			c.Observe, c.SlowWait = o.add, slowWait
		})
		test(f, &o)
	})
}

func TestRequestsAreObserved(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		a := f.must(open("a", 0, "f"))
		again := f.must(open("a", 0, "f"))
		f.fails(try("b", file("f")), lockmgr.ErrContended, 0)
		other, _ := f.manager()
		f.t.Cleanup(func() { _ = other.Close(f.t.Context()) })
		elsewhere, err := other.Acquire(f.t.Context(), open("c", 0, "g"))
		if err != nil {
			f.t.Fatal(err)
		}
		waits := f.later(open("b", time.Minute, "f"))
		waitsElsewhere := f.later(open("b", time.Minute, "g"))
		if s := f.m.Stats(); s.Held != 1 || s.Waiting != 2 || s.Sessions[renew.Held] != 1 || s.Sessions[renew.Suspended] != 0 {
			f.t.Errorf("while two wait: %+v", s)
		}
		time.Sleep(2 * time.Second)
		again.Release()
		a.Release()
		elsewhere.Release()
		(<-waits).Release()
		(<-waitsElsewhere).Release()

		type line struct {
			joined, contended bool
			waited            time.Duration
			refused           bool
		}
		var got []line
		for _, e := range events[lockmgr.RequestEnded](o) {
			got = append(got, line{e.Joined, e.Contended, e.Waited, errors.Is(e.Err, lockmgr.ErrContended)})
		}
		want := []line{{}, {joined: true}, {contended: true, refused: true}, {contended: true, waited: 2 * time.Second}, {contended: true, waited: 2 * time.Second}}
		if !slices.Equal(got, want) {
			f.t.Errorf("requests ended as\n%+v, want\n%+v", got, want)
		}
		if s := f.m.Stats(); s.Held != 0 || s.Waiting != 0 {
			f.t.Errorf("at the end: %+v", s)
		}
		released := events[lockmgr.LockReleased](o)
		if len(released) != 3 || released[0].Held != 2*time.Second {
			f.t.Errorf("released: %+v", released)
		}
	})
}

// An owner that releases a lock and takes it again at once finds its own entry, which is being
// deleted. That is no contention.
func TestOwnEntryIsNoContention(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		f.svc.SlowReleases(time.Second)
		f.must(open("a", 0, "f")).Release()
		f.must(open("a", time.Minute, "f")).Release()
		for _, e := range events[lockmgr.RequestEnded](o) {
			if e.Contended || e.Waited != 0 {
				f.t.Errorf("contended: %+v", e)
			}
		}
	})
}

func TestSlowWaitIsTold(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		other, _ := f.manager()
		f.t.Cleanup(func() { _ = other.Close(f.t.Context()) })
		req := open("c", 0, "g")
		req.Holder.Comm = "holder"
		elsewhere, err := other.Acquire(f.t.Context(), req)
		if err != nil {
			f.t.Fatal(err)
		}
		a := f.must(open("a", 0, "f"))
		quick := f.later(open("b", time.Minute, "f"))
		time.Sleep(slowWait - time.Second)
		a.Release()
		(<-quick).Release()
		req = open("b", time.Minute, "g")
		req.Holder.Comm = "waiter"
		slow := f.later(req)
		time.Sleep(slowWait + time.Second)
		told := events[lockmgr.RequestWaits](o)
		if len(told) != 1 || told[0].Key != file("g") || told[0].Holder.Comm != "waiter" || told[0].For.Comm != "holder" || told[0].Waited != slowWait {
			f.t.Errorf("waiting: %+v", told)
		}
		elsewhere.Release()
		(<-slow).Release()
		synctest.Wait()
		id := told[0].Holder.AcquisitionID.Short()
		f.logOf(id, "lock waited for", "lock granted")
	})
}

func TestLossesAreTold(t *testing.T) {
	inObservedBubble(t, func(f *fixture, o *observer) {
		f.must(open("a", 0, "broken"))
		f.breakLock(file("broken"))
		deleted := f.must(open("a", 0, "deleted"))
		f.svc.Delete(lockmgr.Grant{Key: file("deleted"), AcquisitionID: f.holderOf("deleted"), Token: deleted.Grant(file("deleted")).Token})
		time.Sleep(2 * time.Second) // it is missed
		f.must(open("a", 0, "gone"))
		f.svc.Expire(f.svc.last())
		time.Sleep(ttl)
		f.must(open("a", 0, "unanswered"))
		f.svc.Disconnect()
		time.Sleep(3 * ttl)
		f.svc.Expire(f.svc.last())

		want := map[string]error{"broken": lockmgr.ErrBroken, "deleted": lockmgr.ErrLockLost, "gone": renew.ErrGone, "unanswered": renew.ErrUnanswered}
		for _, e := range events[lockmgr.LockLost](o) {
			if !errors.Is(e.Cause, want[e.Key.Path]) {
				f.t.Errorf("%s is lost: %v, want %v", e.Key, e.Cause, want[e.Key.Path])
			}
			delete(want, e.Key.Path)
			f.logOf(e.Holder.AcquisitionID.Short(), "returns EIO")
		}
		if len(want) > 0 {
			f.t.Errorf("not told of %v", want)
		}
		if n := len(events[lockmgr.SessionRenewed](o)); n < 3 {
			f.t.Errorf("told of %d renewals", n)
		}
		var states []renew.State
		for _, e := range events[lockmgr.SessionChanged](o) {
			states = append(states, e.State)
		}
		if want := []renew.State{renew.Lost, renew.Held, renew.Suspended, renew.Lost}; !slices.Equal(states, want) {
			f.t.Errorf("sessions became %v, want %v", states, want)
		}
	})
}

// One id leads through the log, from the request to the release.
func TestLogOfOneLock(t *testing.T) {
	inBubble(t, func(f *fixture) {
		log := &bytes.Buffer{}
		m, _ := f.manager(func(c *lockmgr.Config) {
			c.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		})
		f.t.Cleanup(func() { _ = m.Close(f.t.Context()) })
		f.log = log
		h := f.must(open("a", 0, "f"))
		req := open("b", time.Minute, "f")
		req.Holder = lockmgr.Holder{PID: 7, Comm: "cp", Pod: "uid", PodName: "team/cp-0", Container: "main"}
		waits := make(chan *lockmgr.Hold)
		go func() {
			h, err := m.Acquire(f.t.Context(), req)
			if err != nil {
				f.t.Error(err)
			}
			waits <- h
		}()
		synctest.Wait()
		second := f.waiterOf("f")
		h.Release()
		b := <-waits
		b.Release()
		synctest.Wait()
		id := second.Short()
		f.logOf(id, "lock asked for", "lock is another owner's", "lock granted", "lock released")
		for _, want := range []string{"path=f", "pid=7", "command=cp", "pod=team/cp-0", "container=main"} {
			if n := strings.Count(log.String(), want); n != 4 {
				f.t.Errorf("%d lines of 4 have %s:\n%s", n, want, log)
			}
		}
	})
}

// holderOf returns the acquisition that has path in the service, and waiterOf the one that
// waits for it.
func (f *fixture) holderOf(path string) lockmgr.AcquisitionID {
	return f.entry(path, true).Holder.AcquisitionID
}
func (f *fixture) waiterOf(path string) lockmgr.AcquisitionID {
	return f.entry(path, false).Holder.AcquisitionID
}

func (f *fixture) entry(path string, held bool) lockmgr.Entry {
	f.t.Helper()
	entries, err := f.svc.Entries(f.t.Context(), path)
	if err != nil {
		f.t.Fatal(err)
	}
	i := slices.IndexFunc(entries, func(e lockmgr.Entry) bool { return e.Held == held })
	if i < 0 {
		f.t.Fatalf("%s has only %v", path, entries)
	}
	return entries[i]
}

// logOf checks that the lines about one lock are these.
func (f *fixture) logOf(id string, want ...string) {
	f.t.Helper()
	var got []string
	for line := range strings.Lines(f.log.String()) {
		if strings.Contains(line, "lock="+id) {
			got = append(got, line)
		}
	}
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && regexp.MustCompile(`msg="[^"]*`+regexp.QuoteMeta(want[i])).MatchString(got[i])
	}
	if !ok {
		f.t.Errorf("of lock %s the log says %q, want %q; all:\n%s", id, got, want, f.log)
	}
}

// Locks that are released in an outage say so once, and then ever more seldom,
// however many they are.
func TestLogOfManyReleasesInAnOutage(t *testing.T) {
	inBubble(t, func(f *fixture) {
		const locks = 300
		var holds []*lockmgr.Hold
		for i := range locks {
			holds = append(holds, f.must(open("a", 0, fmt.Sprint(i))))
		}
		f.svc.Disconnect()
		for _, h := range holds {
			h.Release()
		}
		time.Sleep(ttl / 2)
		f.svc.Connect()
		time.Sleep(ttl / 2)
		synctest.Wait()
		said := 0
		for line := range strings.Lines(f.log.String()) {
			if strings.Contains(line, "level=WARN") && strings.Contains(line, "cannot release a lock") {
				said++
			}
		}
		if said == 0 || said > 20 {
			f.t.Errorf("said %d times of %d locks", said, locks)
		}
		if left, err := f.svc.Entries(f.t.Context(), ""); err != nil || len(left) > 0 {
			f.t.Errorf("left: %v, %v", left, err)
		}
	})
}
