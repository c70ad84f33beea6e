package lockmgr_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// Programs on three machines write to a few files, while the machines are frozen
// and cut off at any time, the service is away, operators break locks, programs
// give up waiting and messages are late or lost. Each write lands as long after
// its check as it may. The margin is as small as is accepted.
//
// No write lands when its entry is gone from the service, or after one with a
// larger token. Once all is well again every program goes on, and in the end
// nothing is left in the service.
func TestRandomFaults(t *testing.T) {
	seeds, sum := 0, make(map[string]int)
	run := func(seed uint64) {
		seeds++
		synctest.Test(t, func(t *testing.T) { newChaos(t, seed, sum, leases{lockmgrtest.NewMemory()}).run() })
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	missing := func() (none []string) {
		for _, what := range []string{"written", "suspended", "lost", "broken", "cancelled", "kept", "recalled while idle", "recalled in use", "directory recalled in use"} {
			if sum[what] == 0 {
				none = append(none, what)
			}
		}
		return none
	}
	for seed := range longtest.Seeds(t, 6, 500) {
		run(seed)
	}
	for seed := uint64(500); len(missing()) > 0 && seed < 600; seed++ { // some are rare
		run(seed)
	}
	t.Logf("%d histories: %v", seeds, sum)
	if none := missing(); len(none) > 0 {
		t.Errorf("nothing was: %v", none)
	}
}

// service is the lock service of a chaos, seen by a client without faults.
type service interface {
	mount(*machine) lockmgr.Backend // as a mount there reaches it
	Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error)
	PutBreak(context.Context, lockmgr.Break) error
	Count() int
	Disconnect() // nobody reaches it, until Connect
	Connect()
}

// chaos is one run of TestRandomFaults.
type chaos struct {
	*testing.T
	svc  service
	stop chan struct{} // of the faults
	end  chan struct{} // of the programs

	mu     sync.Mutex
	rand   *rand.Rand
	tokens map[lockmgr.Key]int64 // of each file's last write, and of each directory's last change
	files  int
	sum    map[string]int
	goesOn map[string]bool // programs that had a lock since stop
}

func newChaos(t *testing.T, seed uint64, sum map[string]int, svc service) *chaos {
	return &chaos{
		files: 3 + int(seed%2)*27, // locks are kept if they are not fought for
		T:     t, svc: svc, stop: make(chan struct{}), end: make(chan struct{}),
		rand: rand.New(rand.NewPCG(seed, 0)), tokens: make(map[lockmgr.Key]int64), sum: sum, goesOn: make(map[string]bool),
	}
}

func (c *chaos) IntN(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rand.IntN(n)
}

// upTo is some time, longer than none.
func (c *chaos) upTo(most time.Duration) time.Duration { return time.Duration(1 + c.IntN(int(most))) }

func (c *chaos) count(what string) {
	c.mu.Lock()
	c.sum[what]++
	c.mu.Unlock()
}

func (c *chaos) observe(e lockmgr.Event) {
	switch e := e.(type) {
	case lockmgr.RequestEnded:
		if e.Kept {
			c.count("kept")
		}
	case lockmgr.DirectoryRecalled:
		if e.Open > 0 {
			c.count("directory recalled in use")
		} else {
			c.count("directory recalled")
		}
	case lockmgr.LockRecalled:
		if e.Idle {
			c.count("recalled while idle")
		} else {
			c.count("recalled in use")
		}
	}
}

func (c *chaos) run() {
	const programs = 3 // on each machine
	var machines []*machine
	var managers []*lockmgr.Manager
	var working, breaking sync.WaitGroup
	for i := range 3 {
		m := &machine{rand: rand.New(rand.NewPCG(uint64(c.IntN(1<<30)), 0))}
		var mgr *lockmgr.Manager
		var err error
		backend := c.svc.mount(m)
		for mgr == nil || err != nil { // a message may be lost here, too
			mgr, err = lockmgr.New(c.Context(), lockmgr.Config{
				Backend: backend, Session: lockmgr.SessionInfo{Node: fmt.Sprint(i)}, Logger: slog.New(slog.DiscardHandler),
				Renew: renew.Config{
					TTL: ttl, Clock: m, Margin: renew.WriteInFlight + renew.CheckToIssue + ttl/renew.ClockRate,
					// Not 1 ns: a frozen machine's clock stands, and its session would look again each ns of it.
					SuspendWait: []time.Duration{time.Millisecond, ttl, 3 * ttl}[c.IntN(3)],
				},
				KeysPerSession: 1 + c.IntN(3),
				Keep:           []time.Duration{0, keepFor, time.Minute}[c.IntN(3)],
				Observe:        c.observe,
			})
		}
		machines, managers = append(machines, m), append(managers, mgr)
		for j := range programs {
			working.Go(func() { c.program(m, mgr, fmt.Sprint(i, ".", j)) })
		}
		breaking.Go(func() { c.trouble(m) })
	}
	breaking.Go(c.outages)
	breaking.Go(c.breaks)
	<-time.After(5 * time.Minute)
	close(c.stop)
	breaking.Wait()
	<-time.After(10 * ttl)
	close(c.end)
	working.Wait()
	if len(c.goesOn) != len(machines)*programs {
		c.Errorf("of %d programs only %v go on", len(machines)*programs, c.goesOn)
	}
	for _, m := range managers {
		if err := m.Close(c.Context()); err != nil && !errors.Is(err, lockmgr.ErrUnavailable) {
			c.Errorf("Close: %v", err)
		}
	}
	<-time.After(3 * ttl) // answers that are late, sessions that nobody was told of
	if n := c.svc.Count(); n != 0 {
		c.Errorf("%d entries are left", n)
	}
}

func over(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// program locks files, one after the other, and writes to them.
func (c *chaos) program(m *machine, mgr *lockmgr.Manager, name string) {
	file := "d/f0"
	for !over(c.end) {
		<-time.After(c.upTo(time.Second))
		m.runs()
		if c.IntN(3) == 0 {
			file = c.file()
		}
		if c.files > 3 && c.IntN(3) == 0 {
			c.burst(m, mgr, name)
		}
		req := open(name, []time.Duration{0, time.Second, time.Minute, -1}[c.IntN(4)], file)
		req.Queue = c.IntN(4) > 0
		switch c.IntN(10) {
		case 0, 1:
			req.Mode = lockmgr.Shared
		case 2:
			req = try(name, tree([]string{"d", "d/e"}[c.IntN(2)]))
		case 3:
			if other := c.file(); other != file {
				req = try(name, req.Keys[0], lockmgrtest.File(other))
			}
		}
		ctx, cancel := context.WithCancel(c.Context())
		if c.IntN(3) == 0 {
			time.AfterFunc(c.upTo(5*time.Second), func() { m.runs(); cancel() })
		}
		held := over(c.stop)
		req.Found = req.Queue
		hold, err := settled(ctx, mgr, req)
		m.runs()
		if err == nil {
			c.work(m, hold, req, c.IntN([]int{50, 3}[c.IntN(2)]))
			if held {
				c.mu.Lock()
				c.goesOn[name] = true
				c.mu.Unlock()
			}
			hold.Release()
		} else if errors.Is(err, context.Canceled) {
			c.count("cancelled")
		}
		cancel()
	}
}

// settled gets a lock as an OPEN does.
func settled(ctx context.Context, mgr *lockmgr.Manager, req lockmgr.Request) (*lockmgr.Hold, error) {
	hold, err := acquire(ctx, mgr, req)
	if err != nil || hold.Looked() {
		return hold, err
	}
	if err := hold.Settle(ctx); err != nil {
		hold.Release()
		return nil, err
	}
	return hold, nil
}

// file is one of several, in a directory, in one below it, or in the root.
func (c *chaos) file() string {
	n := c.IntN(c.files)
	return fmt.Sprint([]string{"d/f", "d/e/f", "d/f", "f"}[n%4], n)
}

// burst opens and closes many files, so that their directory is delegated.
func (c *chaos) burst(m *machine, mgr *lockmgr.Manager, name string) {
	for i := range 30 {
		m.runs()
		req := open(name, time.Second, fmt.Sprint("d/", name, "/", i))
		hold, err := acquire(c.Context(), mgr, req)
		m.runs()
		if err != nil {
			return
		}
		if i > 10 && c.IntN(3) > 0 {
			c.work(m, hold, req, c.IntN(3))
		}
		hold.Release()
	}
}

// work writes, and does not believe that it is over when it is.
func (c *chaos) work(m *machine, hold *lockmgr.Hold, req lockmgr.Request, writes int) {
	key := req.Keys[0]
	token := hold.Token(key)
	var lost bool
	for range writes {
		<-time.After(c.upTo(300 * time.Millisecond))
		m.runs()
		err := hold.Check()
		if errors.Is(err, lockmgr.ErrSuspended) {
			c.count("suspended")
			ctx, cancel := context.WithTimeout(c.Context(), c.upTo(ttl))
			err = hold.Await(ctx)
			cancel()
			m.runs()
			if err == nil {
				err = hold.Check() // frozen meanwhile
			}
		}
		switch {
		case err == nil && lost:
			c.Errorf("%s of %s is good again", key, req.Owner)
		case err == nil:
			go func() {
				<-time.After(renew.CheckToIssue + renew.WriteInFlight)
				c.land(key, token, req)
			}()
		case errors.Is(err, lockmgr.ErrSessionLost), errors.Is(err, lockmgr.ErrLockLost):
			if !lost {
				c.count("lost")
			}
			lost = true
		case !errors.Is(err, lockmgr.ErrSuspended) && !errors.Is(err, context.DeadlineExceeded):
			c.Errorf("%s of %s: %v", key, req.Owner, err)
		}
	}
	<-time.After(renew.CheckToIssue + renew.WriteInFlight) // as a close does
}

// land is the arrival of a write, or of a read, on the volume.
func (c *chaos) land(key lockmgr.Key, token int64, req lockmgr.Request) {
	path := key.Path
	if key.Kind == lockmgr.Inode {
		path = ""
	}
	entries, err := c.svc.Entries(context.Background(), path)
	live := errors.Is(err, lockmgr.ErrUnavailable) // nobody can look
	for _, e := range entries {
		mine := e.Token == token>>12 && e.Mode == req.Mode || e.FencingToken() == token ||
			e.Mode == lockmgr.Delegated && e.Token <= token>>12 && strings.HasPrefix(string(req.Owner), e.Holder.Node)
		live = live || mine && e.Held && e.Key.Conflicts(key)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sum["written"]++
	last := c.tokens[key]
	for k, t := range c.tokens {
		if k.Conflicts(key) {
			last = max(last, t)
		}
	}
	switch {
	case !live:
		c.Errorf("%s: a write of %s, token %d, landed without an entry: %+v", key, req.Owner, token, entries)
	case token < last:
		c.Errorf("%s: a write of %s, token %d, landed after one of token %d", key, req.Owner, token, last)
	case req.Mode == lockmgr.Exclusive:
		c.tokens[key] = token
	}
}

// trouble freezes a machine and cuts it off.
func (c *chaos) trouble(m *machine) {
	for !over(c.stop) {
		<-time.After(c.upTo(20 * time.Second))
		pause := c.upTo([]time.Duration{time.Second, ttl, 3 * ttl}[c.IntN(3)])
		switch c.IntN(3) {
		case 0:
			m.freeze()
			<-time.After(pause)
			m.thaw()
		case 1:
			m.setCut(true)
			<-time.After(pause)
			m.setCut(false)
		case 2: // frozen while cut off, and thawed before the network is back
			m.setCut(true)
			<-time.After(c.upTo(ttl))
			m.freeze()
			<-time.After(pause)
			m.thaw()
			<-time.After(c.upTo(time.Second))
			m.setCut(false)
		}
	}
}

// outages are of the service as a whole.
func (c *chaos) outages() {
	for !over(c.stop) {
		<-time.After(c.upTo(4 * ttl))
		c.svc.Disconnect()
		<-time.After(c.upTo(ttl / 2))
		c.svc.Connect()
	}
}

// breaks breaks a lock now and then.
func (c *chaos) breaks() {
	for !over(c.stop) {
		<-time.After(c.upTo(ttl))
		entries, err := c.svc.Entries(c.Context(), "")
		if err != nil || len(entries) == 0 {
			continue
		}
		e := entries[c.IntN(len(entries))]
		b := lockmgr.Break{ID: uuid.New(), Path: e.Key.String(), AcquisitionID: e.Holder.AcquisitionID, Token: e.Token, Turn: e.Holder.Turn, By: "operator"}
		if c.svc.PutBreak(c.Context(), b) == nil {
			c.count("broken")
		}
	}
}
