package lockmgr_test

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// delegated makes a directory below the root delegated to f's mount.
func (f *fixture) delegated(dir string) {
	f.t.Helper()
	for i := range 4 {
		f.use("a", file(fmt.Sprintf("%s/%d", dir, i)))
	}
	synctest.Wait()
	if s := f.m.Stats(); s.Dirs != 1 || s.Held != 0 {
		f.t.Fatalf("%+v", s)
	}
	f.entries(1, "delegated")
}

// keys lists the entries, with their modes.
func (f *fixture) keys() (list []string) {
	f.t.Helper()
	entries, err := f.svc.Entries(f.t.Context(), "")
	if err != nil {
		f.t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Key.String()+[]string{"", " shared", " delegated"}[e.Mode])
		if !e.Held {
			f.t.Errorf("%+v waits", e)
		}
	}
	return list
}

func (f *fixture) haveKeys(when string, want ...string) {
	f.t.Helper()
	synctest.Wait()
	if got := f.keys(); !slices.Equal(got, want) {
		f.t.Errorf("%s: %v, want %v", when, got, want)
	}
}

// A mount that locks many files below a directory has it delegated, the topmost one. The service
// is not asked any more, and tokens grow. It is given up when it is idle.
func TestDelegated(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		var last int64
		for i := range 3 {
			last = f.use("a", file(fmt.Sprintf("d/e%d/f", i)))
		}
		f.entries(0, "three files")
		last = max(last, f.use("a", file("d/f")))
		f.haveKeys("four files", "d/ delegated")
		f.svc.Disconnect()
		for i := range 100 {
			token := f.use(fmt.Sprint(i), file("d/f"))
			if token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			last = token
			f.must(try("b", file(fmt.Sprint("d/", i)), file("d/e/g"))).Release()
		}
		f.svc.Connect()
		f.entries(1, "after 200 locks")
		f.use("a", file("elsewhere"))
		f.use("a", file("d"))
		f.entries(1, "not below it")
		time.Sleep(keepFor)
		f.haveKeys("idle")
		if token := f.use("a", file("d/f")); token <= last {
			t.Errorf("token %d after %d", token, last)
		}
	})
}

// Owners of the mount exclude each other below a delegated directory, and wait in order.
func TestDelegatedInOrder(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		var lines []<-chan *lockmgr.Hold
		for i := range 3 {
			lines = append(lines, f.later(open(fmt.Sprint(i), -1, "d/f")))
		}
		f.fails(open("x", 0, "d/f"), lockmgr.ErrContended, 0)
		f.fails(try("x", file("d/g"), file("d/f")), lockmgr.ErrContended, 0)
		for _, dir := range []string{"d", "d/f"} {
			f.fails(try("a", tree(dir)), lockmgr.ErrContended, 0)
		}
		if s := f.must(open("a", 0, "d/f")); s.Token(file("d/f")) != h.Token(file("d/f")) {
			t.Error("an owner does not share with itself")
		} else {
			s.Release()
		}
		for _, line := range lines {
			token := h.Token(file("d/f"))
			h.Release()
			h = <-line
			if h.Token(file("d/f")) <= token || h.Check() != nil {
				t.Errorf("token %d after %d, %v", h.Token(file("d/f")), token, h.Check())
			}
		}
		h.Release()
		f.haveKeys("all the time", "d/ delegated")
	})
}

// What the mount does not grant itself has an entry below its own delegation, and excludes what
// it grants itself.
func TestEntriesBelowADelegation(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	shared := open("b", time.Minute, "d/e/f")
	shared.Mode = lockmgr.Shared
	both := open("b", time.Minute, "d/e/f")
	both.Keys = append(both.Keys, inode)
	for name, test := range map[string]struct {
		req  lockmgr.Request
		keys []string
	}{
		"shared":            {shared, []string{"d/e/f shared"}},
		"of several names":  {both, []string{"d/e/f", "inode 7"}},
		"moved in":          {try("b", file("d/e/f"), file("x")), []string{"d/e/f", "x"}},
		"directory moved":   {try("b", tree("d/e"), tree("x")), []string{"d/e/", "x/"}},
		"its own directory": {try("b", tree("d"), tree("x")), []string{"d/", "x/"}},
	} {
		t.Run(name, func(t *testing.T) {
			keeping(t, func(f, _ *fixture) {
				f.delegated("d")
				mine := f.must(open("a", 0, "d/e/f"))
				f.fails(lockmgr.Request{Owner: "b", Keys: test.req.Keys, Mode: test.req.Mode}, lockmgr.ErrContended, 0)
				token := mine.Token(file("d/e/f"))
				mine.Release()
				h := f.must(test.req)
				var have []string
				for _, k := range f.keys() {
					if k != "d/ delegated" {
						have = append(have, k)
					}
				}
				slices.Sort(have)
				if !slices.Equal(have, test.keys) {
					t.Errorf("%v", have)
				}
				f.fails(open("c", 0, "d/e/f"), lockmgr.ErrContended, 0)
				if entry := lockmgr.FencingToken(h.Grant(test.req.Keys[0]).Token, 0); entry <= token {
					t.Errorf("token %d after %d", entry, token)
				}
				token = h.Token(test.req.Keys[0])
				h.Release()
				synctest.Wait()
				mine = f.must(open("a", time.Minute, "d/e/f"))
				if now := mine.Token(file("d/e/f")); now <= token {
					t.Errorf("token %d after %d", now, token)
				}
				mine.Release()
				f.haveKeys("in the end", "d/ delegated")
			})
		})
	}
}

// The mount locks directories below a delegated one by itself too. They exclude each other and what
// is below them, in both directions.
func TestDirectoriesBelowADelegation(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		f.svc.Disconnect()
		for _, keys := range [][]lockmgr.Key{{tree("d/e")}, {tree("d/e"), tree("d/x/e")}} {
			below := f.must(open("a", 0, "d/e/f"))
			f.fails(try("b", keys...), lockmgr.ErrContended, 0)
			last := below.Token(file("d/e/f"))
			below.Release()

			h := f.must(try("b", keys...))
			if h.Check() != nil || h.Token(keys[0]) <= last {
				t.Errorf("%v, token %d after %d", h.Check(), h.Token(keys[0]), last)
			}
			for _, k := range []lockmgr.Key{tree("d/e"), tree("d/e/g"), tree("d/e/g/h"), file("d/e"), file("d/e/f")} {
				f.fails(lockmgr.Request{Owner: "c", Keys: []lockmgr.Key{k}}, lockmgr.ErrContended, 0)
			}
			f.must(try("c", tree("d/ee"), file("d/f"))).Release()
			waits := []<-chan *lockmgr.Hold{f.later(open("c", time.Minute, "d/e/f")), f.later(try("e", file("d/e/h")))}
			synctest.Wait()
			for _, w := range waits {
				select {
				case <-w:
					t.Fatal("a file below was locked")
				default:
				}
			}
			last = h.Token(keys[0])
			h.Release()
			for i, w := range waits {
				h := <-w
				if token := h.Token(file([]string{"d/e/f", "d/e/h"}[i])); token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				h.Release()
			}
		}
		f.svc.Connect()
		f.haveKeys("all the time", "d/ delegated")
	})
}

// A directory that the mount has locked by itself gets an entry when the delegation is recalled.
func TestRecalledWhileADirectoryBelowIsLocked(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		h := f.must(try("b", tree("d/e"), tree("d/x")))
		other.use("a", file("d/g"))
		f.haveKeys("recalled", "d/e/", "d/x/")
		for _, k := range []lockmgr.Key{tree("d"), tree("d/e"), file("d/e/f"), file("d/x")} {
			other.fails(lockmgr.Request{Owner: "a", Keys: []lockmgr.Key{k}}, lockmgr.ErrContended, 0)
		}
		token := h.Token(tree("d/e"))
		h.Release()
		synctest.Wait()
		if now := other.use("a", file("d/e/f")); now <= token {
			t.Errorf("token %d after %d", now, token)
		}
		f.haveKeys("in the end")
	})
}

// What the service may be granting below a directory keeps the mount from locking the directory by
// itself.
func TestDirectoryAboveWhatIsAskedFor(t *testing.T) {
	for _, way := range []struct {
		asked, dir lockmgr.Key
	}{{file("d/e/f"), tree("d/e")}, {file("d/e"), tree("d/e")}, {tree("d/e/g"), tree("d/e")}, {tree("d/e"), tree("d/e/g")}} {
		keeping(t, func(f, _ *fixture) {
			f.delegated("d")
			f.svc.Disconnect()
			asks := f.later(try("a", way.asked, file("elsewhere")))
			synctest.Wait()
			if h, err := f.m.Acquire(f.t.Context(), lockmgr.Request{Owner: "b", Keys: []lockmgr.Key{way.dir}}); err == nil {
				t.Errorf("%v is locked beside %v", way.dir, way.asked)
				h.Release()
			}
			f.svc.Connect()
			(<-asks).Release()
		})
	}
}

// Whatever another mount wants in a delegated directory, below or above it, it gets without a
// wait. What is open there stays locked, with its token, and is excluded from then on by an
// entry of its own.
func TestDelegationIsRecalled(t *testing.T) {
	shared := open("b", time.Minute, "d/g")
	shared.Mode = lockmgr.Shared
	for name, req := range map[string]lockmgr.Request{
		"open":             open("b", time.Minute, "d/e/g"),
		"without patience": open("b", 0, "d/g"),
		"shared":           shared,
		"unlink":           try("b", file("d/g")),
		"rename":           try("b", file("d/g"), file("x")),
		"rmdir below":      try("b", tree("d/x")),
		"file in place":    try("b", file("d")),
	} {
		for _, open1 := range []int{0, 1, 100} {
			t.Run(fmt.Sprint(name, open1), func(t *testing.T) {
				keeping(t, func(f, other *fixture) {
					f.delegated("d")
					var holds []*lockmgr.Hold
					var tokens []int64
					for i := range open1 {
						h := f.must(open(fmt.Sprint(i), 0, fmt.Sprint("d/f", i)))
						holds, tokens = append(holds, h), append(tokens, h.Token(file(fmt.Sprint("d/f", i))))
					}
					begin := time.Now()
					theirs := other.must(req)
					if took := time.Since(begin); took > 0 {
						t.Errorf("took %v", took)
					}
					for i, h := range holds {
						name := fmt.Sprint("d/f", i)
						if h.Check() != nil || h.Token(file(name)) != tokens[i] {
							t.Errorf("%s: %v, token %d, was %d", name, h.Check(), h.Token(file(name)), tokens[i])
						}
						other.fails(open("b", 0, name), lockmgr.ErrContended, 0)
						entries, err := f.svc.Entries(f.t.Context(), name)
						if err != nil || len(entries) == 0 || entries[0].FencingToken() != tokens[i] {
							t.Errorf("%s: %+v, %v", name, entries, err)
						}
						h.Release()
					}
					synctest.Wait()
					for i := range holds {
						h := other.must(open("b", 0, fmt.Sprint("d/f", i)))
						if token := h.Token(file(fmt.Sprint("d/f", i))); token <= tokens[i] {
							t.Errorf("token %d after %d", token, tokens[i])
						}
						h.Release()
					}
					theirs.Release()
					f.haveKeys("in the end")
				})
			})
		}
	}
}

// A waiter for a file that is open below a delegated directory gets it after its close, and before
// owners of the delegate that ask later.
func TestWaitForAFileBelowADelegation(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		token := h.Token(file("d/f"))
		theirs := other.later(open("b", -1, "d/f"))
		ours := f.later(open("c", -1, "d/f"))
		h.Release()
		synctest.Wait()
		got := <-theirs
		if now := got.Token(file("d/f")); now <= token {
			t.Errorf("token %d after %d", now, token)
		}
		select {
		case <-ours:
			t.Fatal("two have it")
		default:
		}
		got.Release()
		(<-ours).Release()
		f.haveKeys("in the end")
	})
}

// A directory is not delegated while another mount has an entry below it, or has another one
// above or below it. After a recall it is not for a while; one below it may be.
func TestNotDelegated(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		use := func() {
			for i := range 20 {
				f.use("a", file(fmt.Sprint("d/e/", i)))
			}
			synctest.Wait()
		}
		theirs := other.must(open("b", 0, "d/e/x/y"))
		use()
		f.haveKeys("another mount's file", "d/e/x/y")
		theirs.Release()
		time.Sleep(time.Minute)
		use()
		f.haveKeys("nobody's", "d/ delegated")
		other.use("b", file("d/other"))
		for i := range 20 {
			f.use("a", file(fmt.Sprint("d/e/f", i)))
		}
		f.haveKeys("after a recall", "d/e/ delegated")
		time.Sleep(time.Minute)
		f.haveKeys("idle")
		theirs = other.must(try("b", tree("d/e")))
		for range 2 {
			f.fails(open("a", 0, "d/e/f"), lockmgr.ErrContended, 0)
		}
		theirs.Release()
		for i := range 20 {
			f.use("a", file(fmt.Sprint(i)))
		}
		f.haveKeys("the root")
	})
}

// What is open for a second below a delegated directory has an entry: people see it, and can
// break it.
func TestOpenBelowADelegationIsSeen(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		h.Looked()
		token := h.Token(file("d/f"))
		f.haveKeys("at once", "d/ delegated")
		time.Sleep(1500 * time.Millisecond)
		f.haveKeys("after a second", "d/ delegated", "d/f")
		if e, ok, err := other.m.Exclusive(f.t.Context(), file("d/f")); err != nil || !ok || e.FencingToken() != token {
			t.Errorf("%+v, %v, %v", e, ok, err)
		}
		if e, ok, err := f.m.Exclusive(f.t.Context(), file("d/f")); err != nil || !ok || e.FencingToken() != token {
			t.Errorf("%+v, %v, %v", e, ok, err)
		}
		entries, err := f.svc.Entries(f.t.Context(), "d/f")
		if err != nil || len(entries) != 2 {
			t.Fatal(entries, err)
		}
		for _, e := range entries {
			b := lockmgr.Break{ID: uuid.New(), Path: e.Key.Path, AcquisitionID: e.Holder.AcquisitionID, Token: e.Token, Turn: e.Holder.Turn, By: "alice"}
			if err := f.svc.PutBreak(f.t.Context(), b); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		if h.Check() == nil {
			t.Error("it was not broken")
		}
		f.haveKeys("broken")
		h.Release()
	})
}

// If the entry of a delegated directory is deleted by hand, what is open by it is lost. What has
// an entry of its own is not.
func TestDeletedDelegationIsMissed(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		old := f.must(open("a", 0, "d/old"))
		time.Sleep(1500 * time.Millisecond)
		young := f.must(open("a", 0, "d/young"))
		entries, err := f.svc.Entries(f.t.Context(), "")
		if err != nil || len(entries) != 2 || entries[0].Mode != lockmgr.Delegated {
			t.Fatal(entries, err)
		}
		f.svc.Delete(entries[0].Grant())
		time.Sleep(2500 * time.Millisecond)
		if young.Check() == nil || old.Check() != nil {
			t.Errorf("young %v, old %v", young.Check(), old.Check())
		}
		h := f.must(open("b", 0, "d/young"))
		f.haveKeys("in the end", "d/old", "d/young")
		for _, h := range []*lockmgr.Hold{h, young, old} {
			h.Release()
		}
	})
}

// A delegation and what is open by it are lost with the session.
func TestDelegationEndsWithItsSession(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		f.svc.Expire(f.svc.last())
		synctest.Wait()
		if h.Check() == nil {
			t.Error("it is not lost")
		}
		h.Release()
		time.Sleep(time.Second)
		other.use("b", file("d/f"))
		if s := f.m.Stats(); s.Dirs != 0 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
		f.delegated("x")
	})
}

// A file that was closed while its entry was being put is free when the session is lost.
func TestClosedBelowADelegationInAnOutage(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		f.svc.Disconnect()
		time.Sleep(1500 * time.Millisecond)
		h.Release()
		time.Sleep(time.Minute)
		f.svc.Expire(f.svc.last())
		f.svc.Connect()
		time.Sleep(time.Minute)
		f.use("a", file("d/f"))
		if s := f.m.Stats(); s.Dirs != 0 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A mount that does not hear of recalls grants nothing by itself.
func TestDeafMountGrantsNothing(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		long, _ := f.manager(func(c *lockmgr.Config) { c.Keep = time.Minute })
		defer func() {
			if err := long.Close(f.t.Context()); err != nil {
				t.Error(err)
			}
		}()
		f.m, long = long, f.m
		defer func() { f.m, long = long, f.m }()
		f.delegated("d")
		time.Sleep(5 * time.Second)
		f.use("a", file("d/f"))
		f.haveKeys("heard", "d/ delegated")
		f.svc.Disconnect()
		time.Sleep(3 * time.Second)
		f.fails(open("a", 0, "d/f"), lockmgr.ErrUnavailable, 0)
		f.svc.Connect()
		time.Sleep(5 * time.Second)
		f.use("a", file("d/f"))
		f.haveKeys("hears again", "d/ delegated")
	})
}

// Where a directory was found below a delegated one is known until somebody locks it or one above:
// this mount, without an entry, or another after the end.
func TestUndisturbedBelowADelegation(t *testing.T) {
	keeping(t, func(f, other *fixture) {
		const name = "d/e/f"
		before := f.must(open("a", 0, name))
		found := before.Token(file(name))
		before.Release()
		f.delegated("d")
		check := func(what string, want bool) {
			t.Helper()
			h := f.must(open("a", time.Minute, name))
			defer h.Release()
			if got := h.Undisturbed(found, file(name)); got != want {
				t.Errorf("%s: undisturbed %v, want %v", what, got, want)
			}
			found = h.Token(file(name))
		}
		check("it was delegated since", false)
		check("nothing between", true)
		check("nothing between", true)
		f.use("a", file("elsewhere"))
		check("a file elsewhere", true)
		f.must(try("a", tree("d/g"))).Release()
		check("a directory beside", true)
		for range 2 {
			f.must(try("a", tree("d/e"))).Release()
			check("a directory was locked", false)
			check("nothing since", true)
		}
		f.must(try("a", tree("d/g"), tree("d/e"))).Release()
		other.use("b", file("d/g"))
		check("a directory was locked, and it has ended", false)
		check("nothing since", true)
		other.must(try("b", tree("d/e"))).Release()
		check("another mount has locked a directory", false)
	})
}

// When an entry's tokens are used up, the service is asked anew.
func TestTokensBelowADelegation(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		last, asked := int64(0), 0
		for range 10000 {
			h := f.must(open("a", time.Minute, "d/f"))
			if token := h.Token(file("d/f")); token <= last {
				t.Fatalf("token %d after %d", token, last)
			} else {
				last = token
			}
			if last == lockmgr.FencingToken(h.Grant(file("d/f")).Token, 0) {
				asked++
			}
			h.Release()
		}
		if asked == 0 || asked > 3 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// Unmounting gives delegated directories up at once.
func TestRefuseEndsDelegations(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		h := f.must(open("a", 0, "d/f"))
		f.m.Refuse()
		f.haveKeys("refusing", "d/f")
		if h.Check() != nil {
			t.Error(h.Check())
		}
		h.Release()
		f.haveKeys("closed")
	})
}
