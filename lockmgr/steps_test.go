package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// A mount keeps a file's lock, or a directory is delegated to it. Another mount wants something
// there. Each step of the recall and of the downgrade meets each fault, on either mount: a step is
// that a recall is heard, or that a request is sent, or its answer. No write lands without its
// entry, or after one with a larger token. Whoever waits has the lock when the session of a mount
// that is away is over, and all others go on.
func TestFaultsAtEachStep(t *testing.T) {
	testEachStep(t, 3, func(*testing.T) service { return leases{lockmgrtest.NewMemory()} })
}

// The same with Leases: a step is a request to the API server, its answer, or an event.
func TestFaultsAtEachStepOfLeases(t *testing.T) {
	longtest.Only(t)
	testEachStep(t, 1, func(t *testing.T) service { return newAPIServer(t) })
}

// testEachStep has the faults at the first steps of each kind, so many.
func testEachStep(t *testing.T, first int, begin func(*testing.T) service) {
	for name, s := range recallStories() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			undisturbed := &telling{recallStory: s}
			undisturbed.tell(t, begin)
			tried, met, longest := 0, 0, make(map[string]time.Duration)
			for _, at := range undisturbed.steps {
				if at.n > first {
					continue
				}
				tried += len(faultsOfAMount)
				for name, f := range faultsOfAMount {
					faulty := &telling{recallStory: s, fault: &f, at: at}
					took := faulty.tell(t, begin)
					if most := f.bound(at) + workFor; took > most {
						t.Errorf("the visitor waited for %v, want %v at most", took, most)
					}
					if t.Failed() {
						t.Fatalf("%s at %v", name, at)
					}
					if faulty.met {
						met++
					}
					name += " on the " + at.mount
					longest[name] = max(longest[name], took)
				}
			}
			if met < tried/2 { // the order of some is left to chance
				t.Errorf("%d of %d faults", met, tried)
			}
			t.Logf("%d faults at %v; the longest waits: %v", met, undisturbed.steps, longest)
		})
	}
}

// step is the n-th message of its kind, to or from a mount, since another wants something.
type step struct {
	mount, what string
	n           int
}

// faultOfAMount begins with a message.
type faultOfAMount struct {
	begin func(*machine) (lost bool) // reports whether that message is lost
	lasts time.Duration              // how long others may have to wait for it to end
}

// awayFor is longer than the session of a mount that is away.
const awayFor = 2 * ttl

var faultsOfAMount = map[string]faultOfAMount{
	"lost":                 {func(*machine) bool { return true }, 0},
	"late":                 {func(*machine) bool { <-time.After(ttl / 5); return false }, ttl / 5},
	"frozen for a moment":  {frozenFor(ttl / 2), ttl / 2},
	"frozen":               {frozenFor(awayFor), awayFor},
	"cut off for a moment": {cutOffFor(ttl / 2), ttl / 2},
	"cut off":              {cutOffFor(awayFor), awayFor},
	"killed": {func(m *machine) bool { // what it would do is lost, until its session is over
		cutOffFor(awayFor)(m)
		return frozenFor(awayFor)(m)
	}, awayFor},
}

func frozenFor(d time.Duration) func(*machine) bool {
	return func(m *machine) bool {
		m.freeze()
		time.AfterFunc(d, m.thaw)
		return false
	}
}

func cutOffFor(d time.Duration) func(*machine) bool {
	return func(m *machine) bool {
		m.setCut(true)
		time.AfterFunc(d, func() { m.setCut(false) })
		return true
	}
}

// workFor is what a visitor may wait beside: programs that have something work on it.
const workFor = ttl / 2

// bound returns how long the fault may keep the visitor waiting.
func (f *faultOfAMount) bound(at step) time.Duration {
	if at.mount == "delegate" {
		return min(f.lasts, ttl)
	}
	return f.lasts
}

// recallStory is what the delegate has, and what another mount wants of it.
type recallStory struct {
	evidence []string          // files that are locked first
	holds    []lockmgr.Request // what programs of the delegate have then
	works    []lockmgr.Request // what others of its programs lock again and again
	wants    []lockmgr.Request // the visitor's
}

func recallStories() map[string]recallStory {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		panic(err)
	}
	of := func(mount string, requests ...lockmgr.Request) []lockmgr.Request {
		for i := range requests {
			requests[i].Owner = lockmgr.Owner(fmt.Sprint(mount, " ", requests[i].Owner, i))
		}
		return requests
	}
	opens := func(paths ...string) (list []lockmgr.Request) {
		for _, p := range paths {
			list = append(list, open("open", -1, p))
		}
		return list
	}
	linked := func(path string) lockmgr.Request {
		r := open("link", -1, path)
		r.Keys = append([]lockmgr.Key{inode}, r.Keys...)
		return r
	}
	changes := func(keys ...lockmgr.Key) []lockmgr.Request {
		return []lockmgr.Request{{Owner: "names", Keys: keys, Wait: -1}}
	}
	file2 := []string{"d/f", "d/f"}
	var dir []string
	for i := range 8 {
		dir = append(dir, fmt.Sprint("d/", i))
	}
	works := of("delegate", opens("d/f", "d/f")...)
	stories := map[string]recallStory{
		"idle file":                 {evidence: file2, wants: opens("d/f")},
		"file in use":               {evidence: file2, holds: opens("d/f"), wants: opens("d/f")},
		"file that is fought for":   {evidence: file2, works: works, wants: opens("d/f")},
		"rename of an idle file":    {evidence: file2, wants: changes(file("d/f"), file("x"))},
		"directory of an idle file": {evidence: file2, wants: changes(tree("d"))},
		"idle directory":            {evidence: dir, wants: opens("d/f")},
		"directory with open files": { // more than PutBelow takes at once
			evidence: dir, holds: opens("d/a", "d/e/b", "d/c", "d/g", "d/h"), wants: opens("d/f", "d/a", "d/h"),
		},
		"directory that is worked in":  {evidence: dir, works: works, wants: opens("d/f")},
		"directory with a locked one":  {evidence: dir, holds: changes(tree("d/e"), tree("d/x")), wants: opens("d/e/f")},
		"rename in a directory":        {evidence: dir, holds: opens("d/a"), wants: changes(tree("d/e"), tree("d/x"))},
		"file of two names":            {evidence: dir, holds: []lockmgr.Request{linked("d/a")}, wants: []lockmgr.Request{linked("x/a")}},
		"file of two names, by itself": {evidence: dir, holds: opens("d/a"), works: []lockmgr.Request{linked("d/b")}, wants: []lockmgr.Request{linked("d/c"), linked("x/a")}},
	}
	for name, s := range stories {
		s.holds, s.works, s.wants = of("delegate", s.holds...), of("delegate", s.works...), of("visitor", s.wants...)
		stories[name] = s
	}
	return stories
}

// telling is one run of a story.
type telling struct {
	recallStory
	fault *faultOfAMount // nil: none
	at    step

	mu    sync.Mutex
	on    bool         // steps are noted
	seen  map[step]int // by step without its number
	steps []step
	met   bool // the step that the fault is for
}

// notes returns what a machine calls at each step.
func (s *telling) notes(mount string, m *machine) func(string) bool {
	return func(what string) (lost bool) {
		s.mu.Lock()
		if !s.on || strings.HasPrefix(what, "renewal ") {
			s.mu.Unlock()
			return false
		}
		kind := step{mount: mount, what: what}
		s.seen[kind]++
		now := step{mount, what, s.seen[kind]}
		s.steps = append(s.steps, now)
		meets := s.fault != nil && now == s.at
		s.met = s.met || meets
		s.mu.Unlock()
		return meets && s.fault.begin(m)
	}
}

func (s *telling) note(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on = on
}

// tell returns how long a visitor waited at most.
func (s *telling) tell(t *testing.T, begin func(*testing.T) service) (longest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		svc := begin(t)
		if svc, ok := svc.(*apiServer); ok {
			defer svc.Close()
		}
		c := newChaos(t, 1, make(map[string]int), svc)
		s.seen = make(map[step]int)
		machines, mounts := make(map[string]*machine), make(map[string]*lockmgr.Manager)
		for _, name := range []string{"delegate", "visitor", "third"} {
			m := &machine{}
			if name != "third" {
				m.at = s.notes(name, m)
			}
			mgr, err := lockmgr.New(t.Context(), lockmgr.Config{
				Backend: c.svc.mount(m), Session: lockmgr.SessionInfo{Node: name}, Renew: renew.Config{TTL: ttl, Clock: m, Margin: renew.WriteInFlight + renew.CheckToIssue + ttl/renew.ClockRate},
				Keep: time.Minute, Logger: slog.New(slog.DiscardHandler),
			})
			if err != nil {
				t.Fatal(err)
			}
			machines[name], mounts[name] = m, mgr
		}
		use := func(mount string, r lockmgr.Request, writes int) time.Duration {
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*ttl) // for ever
			defer cancel()
			hold, err := mounts[mount].Acquire(ctx, r)
			for errors.Is(err, lockmgr.ErrUnavailable) && ctx.Err() == nil {
				<-time.After(time.Second)
				hold, err = mounts[mount].Acquire(ctx, r)
			}
			machines[mount].runs()
			took := time.Since(begin)
			if err != nil {
				t.Errorf("%s: %v", r.Owner, err)
				return took
			}
			c.work(machines[mount], hold, r, writes)
			hold.Release()
			return took
		}
		for _, path := range s.evidence {
			hold, err := mounts["delegate"].Acquire(t.Context(), open("delegate evidence", -1, path))
			if err != nil {
				t.Fatal(err)
			}
			hold.Release()
			<-time.After(100 * time.Millisecond)
		}
		if have := mounts["delegate"].Stats(); have.Kept+have.Dirs != 1 {
			panic(fmt.Sprintf("nothing is kept: %+v", have))
		}
		var working, visiting sync.WaitGroup
		end := make(chan struct{})
		for _, r := range s.holds {
			working.Go(func() { use("delegate", r, 20) })
		}
		for _, r := range s.works {
			working.Go(func() {
				for !over(end) {
					use("delegate", r, 1)
				}
			})
		}
		synctest.Wait()
		s.note(true)
		for _, r := range s.wants {
			visiting.Go(func() {
				took := use("visitor", r, 2)
				s.mu.Lock()
				longest = max(longest, took)
				s.mu.Unlock()
			})
		}
		visiting.Wait()
		s.note(false)
		<-time.After(awayFor + 2*ttl)
		for _, r := range slices.Concat(s.works, s.holds, s.wants) {
			r.Owner = "third " + r.Owner
			if took := use("third", r, 1); took > ttl {
				t.Errorf("%s waited for %v when all was over", r.Owner, took)
			}
		}
		close(end)
		working.Wait()
		for _, m := range mounts {
			if err := m.Close(context.Background()); err != nil && !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Errorf("Close: %v", err)
			}
		}
		<-time.After(3 * ttl)
		if n := c.svc.Count(); n != 0 {
			t.Errorf("%d entries are left", n)
		}
	})
	return longest
}
