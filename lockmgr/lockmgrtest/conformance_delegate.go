package lockmgrtest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
)

// delegator opens a session that directories can be delegated to.
func (t *bench) delegator() (lockmgr.Session, lockmgr.Delegator) {
	s := t.open()
	d, ok := s.(lockmgr.Delegator)
	if !ok {
		t.Skip("directories are not delegated with this lock service")
	}
	return s, d
}

func holder() lockmgr.Holder {
	return lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "n", Kept: true}
}

// tryDelegate asks for a directory.
func (t *bench) tryDelegate(s lockmgr.Session, k lockmgr.Key, h lockmgr.Holder) (lockmgr.Grant, error) {
	grants, err := s.Acquire(t.within(Patience), lockmgr.AcquireRequest{
		Keys: []lockmgr.Key{k}, Mode: lockmgr.Delegated, Holder: h, Keep: true})
	if err != nil {
		return lockmgr.Grant{}, err
	}
	return grants[0], nil
}

// delegate has a directory delegated, which nobody is in.
func (t *bench) delegate(d lockmgr.Session, k lockmgr.Key) lockmgr.Grant {
	t.Helper()
	h := holder()
	g, err := t.tryDelegate(d, k, h)
	if err != nil {
		t.Fatalf("delegating %v: %v", k, err)
	}
	if g.Key != k || g.Mode != lockmgr.Delegated || g.AcquisitionID != h.AcquisitionID || g.Token <= 0 {
		t.Fatalf("delegating %v returned %+v", k, g)
	}
	return g
}

// putBelow puts entries below a delegation.
func (t *bench) putBelow(d lockmgr.Delegator, above lockmgr.Grant, keys ...lockmgr.Key) (grants []lockmgr.Grant) {
	t.Helper()
	for some := range slices.Chunk(keys, d.MostBelow()) {
		var entries []lockmgr.Entry
		for _, k := range some {
			entries = append(entries, lockmgr.Entry{Key: k, Holder: lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Fencing: 7}})
		}
		token, err := d.PutBelow(t.within(Patience), above, entries)
		if err != nil || token <= above.Token {
			t.Fatalf("PutBelow(%v): token %d below %d, %v", some, token, above.Token, err)
		}
		for _, e := range entries {
			e.Token = token
			grants = append(grants, e.Grant())
		}
	}
	return grants
}

// testPutBelow: what is put together below a delegation is held, one by one, as any entry. It
// outlives the delegation, and ends with the session.
func testPutBelow(t *bench) {
	s, d := t.delegator()
	other := t.open()
	g := t.delegate(d, Tree("d"))
	keys := []lockmgr.Key{File("d/e/f"), Tree("d/x"), Tree("d/y/z")}
	for i := range 100 {
		keys = append(keys, File(fmt.Sprintf("d/%d", i)))
	}
	before := t.must(other, lockmgr.NoWait, File("elsewhere"))
	grants := t.putBelow(d, g, keys...)
	t.release(s, g)
	list := t.entries("d")
	for i, k := range keys {
		if !slices.ContainsFunc(list, func(e lockmgr.Entry) bool { return e.Grant() == grants[i] && e.Held && e.FencingToken() == 7 }) {
			t.Fatalf("%v is not held: %+v", k, list)
		}
	}
	for _, k := range []lockmgr.Key{keys[0], File("d/x/f"), Tree("d/y"), File("d/99"), Tree("d")} {
		if _, err := other.Acquire(t.within(Patience), Request(lockmgr.NoWait, k)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("%v: %v", k, err)
		}
	}
	t.release(s, grants[1:]...)
	after := t.must(other, lockmgr.NoWait, File("d/x/f"))
	if after[0].Token <= grants[1].Token || other.Undisturbed(File("d/x/f"), lockmgr.FencingToken(before[0].Token, 0), lockmgr.FencingToken(after[0].Token, 0)) {
		t.Errorf("token %d after %d, undisturbed", after[0].Token, grants[1].Token)
	}
	t.release(other, append(before, after...)...)
	t.expire(s)
	t.eventually("the last ends with its session", func() bool { return len(t.entries("")) == 0 })
}

// testStands: an entry tells a revision between the tokens before and after, while it stands.
func testStands(t *bench) {
	s, d := t.delegator()
	other := t.open()
	for _, g := range []lockmgr.Grant{t.delegate(d, Tree("d")), t.must(s, lockmgr.NoWait, File("f"))[0]} {
		for range 2 {
			before := t.must(other, lockmgr.NoWait, File("elsewhere"))
			rev, err := d.Stands(t.within(Patience), g)
			if err != nil || rev < before[0].Token {
				t.Errorf("%s: revision %d after token %d, %v", g.Key, rev, before[0].Token, err)
			}
			t.release(other, before...)
			after := t.must(other, lockmgr.NoWait, File("elsewhere"))
			if after[0].Token <= rev {
				t.Errorf("%s: token %d after revision %d", g.Key, after[0].Token, rev)
			}
			t.release(other, after...)
		}
		t.release(s, g)
		if rev, err := d.Stands(t.within(Patience), g); !errors.Is(err, lockmgr.ErrNotHeld) {
			t.Errorf("%s is released: revision %d, %v", g.Key, rev, err)
		}
	}
}

// testDelegate: a delegation is an entry as any other. It is listed, held, released once, and
// ends with its session. Between two grants with one in between, a directory was locked.
func testDelegate(t *bench) {
	s, d := t.delegator()
	other := t.open()
	before := t.must(other, lockmgr.NoWait, File("d/x"))
	t.release(other, before...)
	g := t.delegate(d, Tree("d"))
	e := t.entries("d/e/f")
	if len(e) != 1 || e[0].Grant() != g || !e[0].Held || !e[0].Holder.Kept {
		t.Errorf("%+v", e)
	}
	t.rivals(File("d/e/f"))
	t.rivals(Tree("d"))
	t.rivals(File("d"))
	held, err := s.Held(t.within(Patience), []lockmgr.Grant{g})
	if err != nil || !held[0] {
		t.Error(held, err)
	}
	t.release(s, g)
	after := t.must(other, lockmgr.NoWait, File("d/x"))
	t.release(other, after...)
	if other.Undisturbed(File("d/x"), lockmgr.FencingToken(before[0].Token, 0), lockmgr.FencingToken(after[0].Token, 0)) {
		t.Error("undisturbed")
	}
	if err := s.Release(t.within(Patience), g); !errors.Is(err, lockmgr.ErrNotHeld) {
		t.Error(err)
	}
	if again := t.delegate(d, Tree("d")); again.Token <= g.Token {
		t.Errorf("token %d after %d", again.Token, g.Token)
	}
	t.expire(s)
	t.eventually("it ends with its session", func() bool { return len(t.entries("")) == 0 })
}

// testDelegateRefused: nothing is delegated while another session has an entry below, at or
// above the directory, or while any has an entry of a directory there.
func testDelegateRefused(t *bench) {
	s, d := t.delegator()
	other, o := t.delegator()
	for name, test := range map[string]struct {
		keys   []lockmgr.Key
		mine   bool // the session's own are not in the way
		mode   lockmgr.Mode
		beside []lockmgr.Key
	}{
		"file":                 {keys: []lockmgr.Key{File("d/f")}, mine: true},
		"file far below":       {keys: []lockmgr.Key{File("d/a/b/c/f")}, mine: true},
		"one of the files":     {keys: []lockmgr.Key{File("d/f")}, mine: true, beside: []lockmgr.Key{File("d/e/f"), File("d/g")}},
		"reader":               {keys: []lockmgr.Key{File("d/f")}, mine: true, mode: lockmgr.Shared},
		"file in place":        {keys: []lockmgr.Key{File("d")}, mine: true},
		"directory":            {keys: []lockmgr.Key{Tree("d")}},
		"directory below":      {keys: []lockmgr.Key{Tree("d/e")}},
		"directory above":      {keys: []lockmgr.Key{Tree("a")}},
		"delegation":           {keys: []lockmgr.Key{Tree("d")}, mode: lockmgr.Delegated},
		"delegation far below": {keys: []lockmgr.Key{Tree("d/a/b/c/e")}, mode: lockmgr.Delegated},
		"delegation above":     {keys: []lockmgr.Key{Tree("a")}, mode: lockmgr.Delegated},
	} {
		dir := Tree("d")
		if test.keys[0] == Tree("a") {
			dir = Tree("a/b/d")
		}
		for _, by := range []lockmgr.Session{s, other} {
			var beside []lockmgr.Grant
			for _, k := range test.beside {
				beside = append(beside, t.must(s, lockmgr.NoWait, k)...)
			}
			var theirs []lockmgr.Grant
			if test.mode == lockmgr.Delegated {
				theirs = []lockmgr.Grant{t.delegate(map[lockmgr.Session]lockmgr.Delegator{s: d, other: o}[by], test.keys[0])}
			} else {
				req := Request(lockmgr.NoWait, test.keys...)
				req.Mode = test.mode
				theirs = t.mustHave(by, req)
			}
			g, err := t.tryDelegate(d, dir, holder())
			if by == s && test.mine {
				if err != nil {
					t.Errorf("own %s: %v", name, err)
				} else {
					t.release(s, g)
				}
			} else if !errors.Is(err, lockmgr.ErrContended) {
				t.Errorf("%s, own %v: %v", name, by == s, err)
			}
			t.release(by, theirs...)
			t.release(s, beside...)
		}
	}
	t.delegate(d, Tree("d"))
	t.delegate(o, Tree("dd"))
}

// testDelegateOwn: a delegation is in no way of its own session, whatever that asks for.
func testDelegateOwn(t *bench) {
	s, d := t.delegator()
	t.release(t.open(), t.must(t.open(), lockmgr.NoWait, Tree("elsewhere"))...)
	g := t.delegate(d, Tree("d"))
	for _, wait := range []lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry, lockmgr.Queue} {
		for _, stale := range []bool{false, true} {
			reqs := []lockmgr.AcquireRequest{Request(wait, File("d/f")), Shared(wait, File("d/e/f")), Request(wait, File("d/f"), File("x"), inode("", 7)), Request(wait, File("d"))}
			if wait != lockmgr.Queue {
				reqs = append(reqs, Request(wait, Tree("d/e")), Request(wait, Tree("d"), Tree("x")), Request(wait, Tree("d/a"), Tree("d/b")))
			}
			for _, req := range reqs {
				if stale { // the session does not know the volume's directories
					by := t.open()
					t.release(by, t.must(by, lockmgr.NoWait, Tree("other"))...)
				}
				grants := t.mustHave(s, req)
				if grants[0].Token <= g.Token {
					t.Errorf("%v: token %d, the delegation has %d", req.Keys, grants[0].Token, g.Token)
				}
				for _, e := range t.entries("") {
					if !e.Held {
						t.Errorf("%+v waits", e)
					}
				}
				t.release(s, grants...)
			}
		}
	}
	first := t.must(s, lockmgr.NoWait, File("d/f"))
	second := Start(t.within(Patience), s, Request(lockmgr.Queue, File("d/f")))
	t.eventually("its own requests wait for each other", func() bool { return len(t.entries("d/f")) == 3 })
	t.release(s, first...)
	t.release(s, t.await(second).Grants...)
	t.release(s, g)
}

// testDelegateRecalled: whatever another session wants below, at or above the directory recalls
// the delegation, and puts nothing while it stands. Entries that the mount puts before it
// releases the delegation are ahead of the requests that waited.
func testDelegateRecalled(t *bench) {
	mine, d := t.delegator()
	_, found := t.recaller()
	theirs := t.open()
	for name, req := range map[string]lockmgr.AcquireRequest{
		"queue":           Request(lockmgr.Queue, File("d/e/f")),
		"queue for two":   Request(lockmgr.Queue, File("x"), File("d/e/f")),
		"share":           Shared(lockmgr.Queue, File("d/e/f")),
		"retry":           Request(lockmgr.Retry, File("d/e/f")),
		"try":             Request(lockmgr.NoWait, File("d/e/f")),
		"file in place":   Request(lockmgr.Queue, File("d")),
		"directory":       Request(lockmgr.Retry, Tree("d")),
		"try directory":   Request(lockmgr.NoWait, Tree("d")),
		"directory below": Request(lockmgr.Retry, Tree("d/e")),
	} {
		for _, open := range []bool{false, true} {
			g := t.delegate(d, Tree("d"))
			answer := Start(t.within(Patience), theirs, req)
			t.recalled(found, g)
			if e := t.entries(""); len(e) != 1 || !e[0].Held {
				t.Errorf("%s: %+v", name, e)
			}
			var entry []lockmgr.Grant
			if open && name != "file in place" {
				entry = t.putBelow(d, g, File("d/e/f"))
			}
			t.release(mine, g)
			if entry != nil {
				if req.Wait == lockmgr.NoWait {
					if err := t.await(answer).Err; !errors.Is(err, lockmgr.ErrContended) {
						t.Errorf("%s: %v", name, err)
					}
					t.release(mine, entry...)
					continue
				}
				if req.Wait == lockmgr.Queue {
					t.eventually("the request is in line", func() bool {
						return slices.ContainsFunc(t.entries(""), func(e lockmgr.Entry) bool {
							return e.Holder.AcquisitionID == req.Holder.AcquisitionID && e.Key.Path == "d/e/f" && !e.Held
						})
					})
				}
				t.release(mine, entry...)
			}
			a := t.await(answer)
			if a.Err != nil {
				t.Fatalf("%s: %v", name, a.Err)
			}
			if a.Grants[0].Token <= g.Token || entry != nil && a.Grants[0].Token <= entry[0].Token {
				t.Errorf("%s: token %d after %d", name, a.Grants[0].Token, g.Token)
			}
			t.release(theirs, a.Grants...)
			t.eventually("no recall stands", func() bool {
				standing, err := t.b.(lockmgr.Recaller).Recalls(t.within(Patience))
				return err == nil && len(standing) == 0
			})
		}
	}
}

// testDelegateExclusion has sessions take files and directories at random, some by delegations,
// and checks at each grant that nobody has what conflicts.
func testDelegateExclusion(t *bench) {
	t.delegator() // or skip
	var mu sync.Mutex
	held := make(map[lockmgr.Grant]lockmgr.Session)
	take := func(s lockmgr.Session, grants ...lockmgr.Grant) {
		mu.Lock()
		defer mu.Unlock()
		for _, g := range grants {
			for o, by := range held {
				own := by == s && (o.Mode == lockmgr.Delegated || g.Mode == lockmgr.Delegated)
				if o.Mode.Conflicts(g.Mode) && o.Key.Conflicts(g.Key) && !own {
					t.Errorf("%+v beside %+v", g, o)
				}
			}
			held[g] = s
		}
	}
	give := func(s lockmgr.Session, grants ...lockmgr.Grant) {
		mu.Lock()
		for _, g := range grants {
			delete(held, g)
		}
		mu.Unlock()
		t.release(s, grants...)
	}
	rounds := 20
	if longtest.For(t.T) > 0 {
		rounds = 60
	}
	var wg sync.WaitGroup
	granted, delegated := make([]int, 3), make([]int, 3)
	for i := range granted {
		s, d := t.delegator()
		rnd := rand.New(rand.NewPCG(uint64(i), 7))
		wg.Go(func() {
			for range rounds {
				dir := Tree([]string{"d", "d/e"}[rnd.IntN(2)])
				file := File(fmt.Sprintf("%s/%d", []string{"d", "d/e"}[rnd.IntN(2)], rnd.IntN(2)))
				if rnd.IntN(3) > 0 {
					g, err := t.tryDelegate(d, dir, holder())
					if err == nil {
						delegated[i]++
						take(s, g)
						below := File(dir.Path + "/x")
						own := t.must(s, []lockmgr.Wait{lockmgr.NoWait, lockmgr.Queue}[rnd.IntN(2)], below)
						take(s, own...)
						give(s, slices.Concat([]lockmgr.Grant{g}, own)...)
					} else if !errors.Is(err, lockmgr.ErrContended) {
						t.Error(err)
					}
				}
				req := Request([]lockmgr.Wait{lockmgr.NoWait, lockmgr.Retry, lockmgr.Queue}[rnd.IntN(3)], file)
				if rnd.IntN(4) == 0 {
					req = Request(lockmgr.Retry, dir)
				}
				grants, err := s.Acquire(t.Context(), req) // one that retries may have to wait for the others' last round
				if err != nil && (req.Wait != lockmgr.NoWait || !errors.Is(err, lockmgr.ErrContended)) {
					t.Error(err)
					return
				}
				if err == nil {
					granted[i]++
					take(s, grants...)
					give(s, grants...)
				}
			}
		})
	}
	wg.Wait()
	t.Logf("granted %v, delegated %v", granted, delegated)
}
