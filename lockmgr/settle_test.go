package lockmgr_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// found is the request of an OPEN of a file that is there.
func found(owner, path string) lockmgr.Request {
	r := open(owner, time.Minute, path)
	r.Found = true
	return r
}

func renaming(owner string, keys ...lockmgr.Key) lockmgr.Request {
	r := try(owner, keys...)
	r.Renames = true
	return r
}

// What others have locked of a file by another name recalls no directory. When the file has one
// name, below a delegated directory, its token is larger all the same. It costs a read once.
func TestSettle(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		var last int64
		byAnotherName := func() {
			h := other.must(try("b", inode, file("elsewhere")))
			last = h.Token(inode)
			h.Release()
			synctest.Wait()
		}
		settled := func(path string) {
			t.Helper()
			h := f.must(found("a", path))
			if h.Looked() {
				t.Errorf("%s is settled", path)
			}
			if err := h.Settle(f.t.Context()); err != nil || !h.Looked() {
				t.Errorf("%s: %v, settled %v", path, err, h.Looked())
			}
			if token := h.Token(file(path)); token <= last {
				t.Errorf("token %d of %s after %d", token, path, last)
			} else {
				last = token
			}
			h.Release()
		}
		byItself := func(path string) {
			t.Helper()
			f.svc.Disconnect()
			defer f.svc.Connect()
			h := f.must(found("a", path))
			if token := h.Token(file(path)); !h.Looked() || token <= last {
				t.Errorf("%s: token %d after %d, settled %v", path, token, last, h.Looked())
			} else {
				last = token
			}
			h.Release()
		}
		byAnotherName()
		settled("d/f")
		byItself("d/f")
		byItself("d/f")

		// Whatever may give the name to another file.
		for _, keys := range [][]lockmgr.Key{{file("d/f")}, {file("d/g"), file("d/f")}, {tree("d/x")}, {file("d/f"), file("elsewhere")}} {
			f.must(try("a", keys...)).Release()
			synctest.Wait()
			byAnotherName()
			settled("d/f")
			byItself("d/f")
		}

		made := found("a", "d/new")
		made.Queue = false
		h := f.must(made)
		h.Made(file("d/new"))
		if !h.Looked() {
			t.Error("a new file is not settled")
		}
		h.Release()
		byItself("d/new")
		f.haveKeys("all the time", "d/ delegated")
	})
}

// A directory is recalled while a file in it is opened: the token is that of the file's entry, for
// all that the owner has there. If the service does not answer, the open fails. If the delegation was
// deleted, the lock is lost.
func TestSettleInARecall(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		before := f.must(found("a", "d/f"))
		parked := f.must(found("a", "d/f"))
		elsewhere := other.must(try("b", inode, file("elsewhere")))
		last := elsewhere.Token(inode)
		elsewhere.Release()
		other.use("b", file("d/g"))
		for _, h := range []*lockmgr.Hold{before, parked, f.must(found("a", "d/f"))} {
			if err := h.Settle(f.t.Context()); err != nil || !h.Looked() || h.Token(file("d/f")) <= last {
				t.Errorf("%v, settled %v, token %d after %d", err, h.Looked(), h.Token(file("d/f")), last)
			}
			entries, err := f.svc.Entries(f.t.Context(), "d/f")
			if err != nil || len(entries) != 1 || entries[0].FencingToken() != h.Token(file("d/f")) {
				t.Errorf("%+v, %v; the owner has token %d", entries, err, h.Token(file("d/f")))
			}
			h.Release()
		}
		synctest.Wait()
		h := f.must(found("a", "d/f"))
		if !h.Looked() {
			t.Error("an entry's token is not settled")
		}
		h.Release()
		time.Sleep(time.Minute)
		f.delegated("d")
		h = f.must(found("a", "d/f"))
		f.svc.Disconnect()
		if err := h.Settle(f.t.Context()); err == nil || h.Looked() {
			t.Errorf("%v, settled %v", err, h.Looked())
		}
		f.svc.Connect()
		entries, err := f.svc.Entries(f.t.Context(), "")
		if err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
		f.svc.Delete(entries[0].Grant())
		if err := h.Settle(f.t.Context()); err == nil {
			t.Error("settled without a delegation")
		}
		time.Sleep(ttl)
		if err := h.Check(); !errors.Is(err, lockmgr.ErrLockLost) {
			t.Errorf("%v, want ErrLockLost", err)
		}
		h.Release()
	})
}

// An owner has the inode's lock already when it opens the file by its name below the directory. The
// file has two names then, so its token is not settled when it has one.
func TestSettleWithTwoNames(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		first := f.must(try("a", inode, file("elsewhere")))
		both := found("a", "d/f")
		both.Keys = append(both.Keys, inode)
		second := f.must(both)
		if err := second.Settle(f.t.Context()); err != nil {
			t.Fatal(err)
		}
		second.Release()
		first.Release()
		synctest.Wait()
		h := other.must(try("b", inode, file("elsewhere")))
		last := h.Token(inode)
		h.Release()
		synctest.Wait()
		h = f.must(found("a", "d/f"))
		if err := h.Settle(f.t.Context()); err != nil {
			t.Fatal(err)
		}
		if token := h.Token(file("d/f")); token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		h.Release()
	})
}

// The name is given to another file while its owner opens it, which may have had an owner elsewhere.
func TestSettleWhileTheNameChanges(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 8)
	if err != nil {
		t.Fatal(err)
	}
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		opened := f.must(found("a", "d/f"))
		rename := f.must(renaming("a", file("d/h"), file("d/f")))
		if err := opened.Settle(f.t.Context()); err != nil { // it has looked before
			t.Fatal(err)
		}
		rename.Release()
		beside := f.must(found("a", "d/f"))
		check := func(h *lockmgr.Hold) {
			t.Helper()
			b := other.must(try("b", inode, file("elsewhere")))
			last := b.Token(inode)
			b.Release()
			synctest.Wait()
			if err := h.Settle(f.t.Context()); err != nil {
				t.Fatal(err)
			}
			if token := h.Token(file("d/f")); token <= last {
				t.Errorf("token %d after %d", token, last)
			}
		}
		check(beside)
		opened.Release()
		beside.Release()
		synctest.Wait()
		check(f.must(found("a", "d/f")))
	})
}

// The numbers of a delegation are used up: no token is given out that would not be smaller than the
// next entry's.
func TestSettleWithoutNumbers(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		name := func(i int) string { return fmt.Sprint("d/f", i) }
		const last = 1<<12 - 1
		var opened []*lockmgr.Hold
		for number := int64(0); number < last; {
			opened = append(opened, f.must(found("a", name(len(opened)))))
			i := len(opened) - 1
			number = opened[i].Token(file(name(i))) & last
		}
		largest := int64(0)
		for i, h := range opened {
			if err := h.Settle(f.t.Context()); !errors.Is(err, lockmgr.ErrUnavailable) {
				t.Fatalf("%v, want ErrUnavailable", err)
			}
			largest = max(largest, h.Token(file(name(i))))
			h.Release()
		}
		synctest.Wait()
		next := f.must(found("a", name(0)))
		if err := next.Settle(f.t.Context()); err != nil || next.Token(file(name(0))) <= largest {
			t.Errorf("%v, token %d after %d", err, next.Token(file(name(0))), largest)
		}
		next.Release()
	})
}

// A new file's lock has an entry when its owner renames another file over it.
func TestSettleAfterARenameOverAnEntry(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 9)
	if err != nil {
		t.Fatal(err)
	}
	keeping(t, func(f, other *fixture) {
		f.delegated("d")
		opened := f.must(found("a", "d/f"))
		opened.Made(file("d/f"))
		time.Sleep(1500 * time.Millisecond) // what is open for a second gets an entry
		if entries, err := f.svc.Entries(f.t.Context(), "d/f"); err != nil || len(entries) != 2 {
			t.Fatalf("%+v, %v: want the delegation, and an entry", entries, err)
		}
		f.must(renaming("a", file("d/h"), file("d/f"))).Release()
		opened.Release()
		synctest.Wait()
		b := other.must(try("b", inode, file("elsewhere")))
		last := b.Token(inode)
		b.Release()
		synctest.Wait()
		h := f.must(found("a", "d/f"))
		if err := h.Settle(f.t.Context()); err != nil {
			t.Fatal(err)
		}
		if token := h.Token(file("d/f")); token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		h.Release()
	})
}

// An owner locks a name to change it, and opens it in another thread.
func TestSettleBesideAChange(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		rename := f.must(renaming("a", file("d/h"), file("d/f")))
		h := f.must(found("a", "d/f"))
		if h.Looked() {
			t.Error("the open has what was locked for the rename, and is settled")
		}
		rename.Release()
		h.Release()
	})
}

// A lock with an entry is shared for a rename: its name gets a file that others have had by later
// tokens. Who shares the lock then gets a larger one, which other mounts see too. The lock is not
// kept.
func TestSettleAfterARenameOverAnOpenFile(t *testing.T) {
	for _, keep := range []time.Duration{0, keepFor} {
		keeping(t, func(f, other *fixture) {
			byName := func(owner, path string) lockmgr.Request {
				r := found(owner, path)
				r.Keep = &keep
				return r
			}
			var last int64
			use := func(mount *fixture, owner, path string) {
				t.Helper()
				h := mount.must(byName(owner, path))
				if token := h.Token(file(path)); token <= last {
					t.Errorf("%s has token %d after %d", owner, token, last)
				} else {
					last = token
				}
				h.Release()
				synctest.Wait()
			}
			use(f, "a", "f")
			first := f.must(byName("a", "f"))
			use(other, "b", "g")
			f.must(renaming("a", file("g"), file("f"))).Release()
			synctest.Wait()
			for range 2 {
				h := f.must(byName("a", "f"))
				if h.Looked() {
					t.Error("the name may have got another file, and is settled")
				}
				f.svc.Disconnect()
				if err := h.Settle(f.t.Context()); !errors.Is(err, lockmgr.ErrUnavailable) {
					t.Errorf("%v, want ErrUnavailable", err)
				}
				f.svc.Connect()
				if err := h.Settle(f.t.Context()); err != nil {
					t.Fatal(err)
				}
				if token := h.Token(file("f")); token <= last {
					t.Errorf("token %d after %d", token, last)
				} else {
					last = token
				}
				time.Sleep(3 * time.Second) // the service is told
				if e, ok, err := other.m.Exclusive(f.t.Context(), file("f")); err != nil || !ok || e.FencingToken() != last {
					t.Errorf("another mount sees token %d, %v; the owner has %d", e.FencingToken(), err, last)
				}
				h.Release()
				use(other, "b", "elsewhere")
			}
			first.Release()
			synctest.Wait()
			f.haveKeys("after the last close")
			use(f, "c", "f")
		})
	}
}

// An owner has two files open, of which one gets the other's name, or each gets the other's. Neither
// has a smaller token after that.
func TestTokensOfARename(t *testing.T) {
	for _, delegated := range [][]string{nil, {"d"}, {"e"}, {"d", "e"}} {
		keeping(t, func(f, other *fixture) {
			for _, dir := range delegated {
				for i := range 4 {
					f.use("a", file(fmt.Sprintf("%s/%d", dir, i)))
				}
			}
			if s := f.m.Stats(); s.Dirs != len(delegated) {
				t.Fatalf("%+v", s)
			}
			first := f.must(open("a", 0, "d/f"))
			other.use("b", file("elsewhere"))
			second := f.must(open("a", 0, "e/g"))
			had := max(first.Token(file("d/f")), second.Token(file("e/g")))
			rename := f.must(renaming("a", file("e/g"), file("d/f")))
			for _, h := range []*lockmgr.Hold{rename, first, second} {
				for _, k := range []lockmgr.Key{file("d/f"), file("e/g")} {
					if token := h.Token(k); token != 0 && token < had {
						t.Errorf("delegated %v: %s has token %d after %d", delegated, k, token, had)
					}
				}
				h.Release()
			}
			synctest.Wait()
			for _, k := range []lockmgr.Key{file("d/f"), file("e/g")} {
				h := f.must(found("c", k.Path))
				if err := h.Settle(f.t.Context()); err != nil || h.Token(k) <= had {
					t.Errorf("delegated %v: the next owner of %s has token %d after %d, %v", delegated, k, h.Token(k), had, err)
				}
				h.Release()
			}
		})
	}
}

// Between an owner's grant and its look at the file, another one has the file by a name that is gone
// then. Who asks for the token gets a larger one, and the same one again. The next owner has a larger
// one still.
func TestTokenIsSettledWhenAsked(t *testing.T) {
	inode, err := lockmgr.InodeKey("", 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, keep := range []time.Duration{0, keepFor} {
		keeping(t, func(f, other *fixture) {
			asks := func(h *lockmgr.Hold) int64 {
				t.Helper()
				if !h.Looked() {
					t.Error("an open is not answered at once")
				}
				token, ok, err := f.m.FencingToken(f.t.Context(), file("f"))
				if err != nil || !ok {
					t.Errorf("%v, %v", ok, err)
				}
				return token
			}
			var last int64
			for i := range 4 {
				own := found("a", "f")
				own.Keep = &keep
				h := f.must(own)
				if keep == 0 || i == 0 { // nobody gives a file of one name another while its lock is kept
					elsewhere := other.must(try("b", inode, file("g")))
					last = max(last, elsewhere.Token(inode))
					elsewhere.Release()
					synctest.Wait()
				}
				token := asks(h)
				if token <= last {
					t.Errorf("keep %v: token %d after %d", keep, token, last)
				}
				last = token
				f.svc.Disconnect()
				if again := asks(h); again != token {
					t.Errorf("keep %v: token %d, and then %d", keep, token, again)
				}
				f.svc.Connect()
				time.Sleep(3 * time.Second) // the service is told
				if e, ok, err := other.m.Exclusive(f.t.Context(), file("f")); err != nil || !ok || e.FencingToken() != token {
					t.Errorf("keep %v: another mount sees token %d, %v; the owner has %d", keep, e.FencingToken(), err, token)
				}
				h.Release()
				synctest.Wait()
			}
		})
	}
}

// A hold that is lost while its open settles it ends that at once: its lock stands until what was
// written has landed, and longer if the service does not answer.
func TestSettleOfALostHold(t *testing.T) {
	keeping(t, func(f, _ *fixture) {
		f.delegated("d")
		h := f.must(found("a", "d/f"))
		if h.Looked() {
			t.Fatal("it is settled")
		}
		f.m.Abandon([]*lockmgr.Hold{h}, lockmgr.ErrVolumeGone)
		if err := h.Settle(f.t.Context()); !errors.Is(err, lockmgr.ErrLockLost) {
			t.Errorf("Settle: %v", err)
		}
		h.Release()
		time.Sleep(time.Minute)
	})
}
