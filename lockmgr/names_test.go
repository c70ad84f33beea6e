package lockmgr_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// A file with several names is locked by the one that was opened, and by its inode.

// byName is the request of an OPEN of such a file.
func byName(owner string, mode lockmgr.Mode, name string) lockmgr.Request {
	r := open(owner, -1, name)
	r.Mode = mode
	r.Keys = append(r.Keys, theInode)
	return r
}

var theInode = inode("", 7)

// on runs a test with f.m and another mount, or the same.
func (f *fixture) on(where string, test func(m *lockmgr.Manager)) {
	if where == "here" {
		test(f.m)
		return
	}
	m, _ := f.manager()
	test(m)
	if err := m.Close(f.t.Context()); err != nil {
		f.t.Error(err)
	}
}

// laterOn is later on a mount.
func (f *fixture) laterOn(m *lockmgr.Manager, req lockmgr.Request) <-chan *lockmgr.Hold {
	here := *f
	here.m = m
	got := here.later(req)
	synctest.Wait()
	return got
}

// An owner that has a file opens it by another of its names, and changes that,
// though others, here or on another mount, wait for the file by that name: they
// cannot go on before the owner does.
func TestOwnerPassesWhoWaitsForIt(t *testing.T) {
	modes := map[string][2]lockmgr.Mode{
		"a writer, for a writer": {lockmgr.Exclusive, lockmgr.Exclusive},
		"a reader, for a writer": {lockmgr.Exclusive, lockmgr.Shared},
		"a writer, for a reader": {lockmgr.Shared, lockmgr.Exclusive},
	}
	for _, where := range []string{"here", "elsewhere"} {
		for name, mode := range modes {
			t.Run(name+" "+where, func(t *testing.T) {
				inBubble(t, func(f *fixture) {
					f.on(where, func(m *lockmgr.Manager) {
						holds := []*lockmgr.Hold{f.must(byName("pod", mode[0], "a"))}
						first := f.laterOn(m, byName("first", mode[1], "b"))
						second := f.laterOn(m, byName("second", lockmgr.Exclusive, "b"))
						for _, req := range []lockmgr.Request{byName("pod", mode[0], "b"), byName("pod", mode[0], "c")} {
							req.Wait = time.Hour
							holds = append(holds, f.must(req))
						}
						if mode[0] == lockmgr.Exclusive {
							holds = append(holds, f.must(try("pod", file("b"), file("d"), theInode)))
						}
						for _, h := range holds {
							synctest.Wait()
							if len(first)+len(second) > 0 {
								f.t.Fatal("granted beside the owner")
							}
							h.Release()
						}
						h := <-first
						synctest.Wait()
						if len(second) > 0 {
							f.t.Fatal("two have it")
						}
						h.Release()
						(<-second).Release()
					})
				})
			})
		}
	}
}

// Owners that wait for one file, by whichever of its names, get it in order of arrival.
func TestOrderByNames(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		t.Run(where, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.on(where, func(m *lockmgr.Manager) {
					holder := f.must(byName("holder", lockmgr.Exclusive, "a"))
					var line []<-chan *lockmgr.Hold
					for i, name := range []string{"b", "a", "c", "b"} {
						line = append(line, f.laterOn(m, byName("owner "+string(rune('0'+i)), lockmgr.Exclusive, name)))
					}
					for i, next := range line {
						holder.Release()
						synctest.Wait()
						for _, later := range line[i+1:] {
							if len(later) > 0 {
								f.t.Fatalf("one who came after the %dth was first", i)
							}
						}
						holder = <-next
					}
					holder.Release()
				})
			})
		})
	}
}

// A file that nobody has is had by all its keys at once.
func TestAllKeysAtOnce(t *testing.T) {
	inBubble(t, func(f *fixture) {
		h := f.must(byName("a", lockmgr.Exclusive, "a"))
		defer h.Release()
		if name := h.Token(file("a")); name == 0 || h.Token(theInode) != name {
			f.t.Errorf("tokens %d and %d", name, h.Token(theInode))
		}
	})
}

// While it waits in the service for the name, a request has the inode; when it
// gives up nothing of it stays.
func TestGivesUpBetweenInodeAndName(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.on("elsewhere", func(m *lockmgr.Manager) {
			holder := f.must(open("creator", 0, "a"))
			ctx, cancel := context.WithCancel(f.t.Context())
			got := make(chan error, 1)
			go func() {
				_, err := m.Acquire(ctx, byName("waiter", lockmgr.Exclusive, "a"))
				got <- err
			}()
			synctest.Wait()
			f.fails(open("third", 0, "a"), lockmgr.ErrContended, 0)
			cancel()
			if err := <-got; !errors.Is(err, context.Canceled) || !errors.Is(err, lockmgr.ErrContended) {
				f.t.Errorf("got %v", err)
			}
			synctest.Wait()
			holder.Release()
			f.must(byName("third", lockmgr.Exclusive, "b")).Release()
		})
	})
}

// A request that has the inode no more, for its session was lost while it waited for
// the name, does not keep the name while it waits for the inode.
func TestInodeLostBeforeTheName(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.on("elsewhere", func(m *lockmgr.Manager) {
			session := f.svc.last()
			creator := f.must(open("creator", 0, "a"))
			waiter := f.laterOn(m, byName("waiter", lockmgr.Exclusive, "a"))
			owner := f.later(byName("owner", lockmgr.Exclusive, "b"))
			synctest.Wait()
			if len(owner) > 0 {
				f.t.Fatal("the waiter did not have the inode")
			}
			f.svc.Expire(session)
			b := <-owner
			time.Sleep(time.Minute) // the waiter has another session
			creator.Release()
			synctest.Wait()
			req := byName("owner", lockmgr.Exclusive, "a")
			req.Wait = time.Hour
			f.must(req).Release()
			b.Release()
			(<-waiter).Release()
		})
	})
}

// A request that shares the name with another of its owner's, and waits for the inode,
// does not keep the name when the other lets it go: the inode's owner may wait for it.
func TestSharedNameIsNotKept(t *testing.T) {
	inBubble(t, func(f *fixture) {
		f.on("elsewhere", func(m *lockmgr.Manager) {
			sharing := open("pod", 0, "a")
			name, err := m.Acquire(f.t.Context(), sharing)
			if err != nil {
				f.t.Fatal(err)
			}
			holds := []*lockmgr.Hold{f.must(byName("owner", lockmgr.Exclusive, "b"))}
			waiter := f.laterOn(m, byName("pod", lockmgr.Exclusive, "a"))
			owner := f.later(byName("owner", lockmgr.Exclusive, "a"))
			synctest.Wait()
			name.Release()
			time.Sleep(time.Minute)
			if len(owner) == 0 {
				f.t.Fatal("who waits for the inode keeps the name")
			}
			for _, h := range append(holds, <-owner) {
				h.Release()
			}
			(<-waiter).Release()
		})
	})
}

// A long wait is reported with its holder, if that has the inode by another name, too.
func TestLongWaitForTheInode(t *testing.T) {
	inBubble(t, func(f *fixture) {
		events := make(chan lockmgr.Event, 100)
		m, _ := f.manager(func(c *lockmgr.Config) {
			c.SlowWait, c.Observe = time.Second, func(e lockmgr.Event) { events <- e }
		})
		req := byName("owner", lockmgr.Exclusive, "a")
		req.Holder.Comm = "holder"
		h := f.must(req)
		waiter := f.laterOn(m, byName("waiter", lockmgr.Exclusive, "b"))
		time.Sleep(2 * time.Second)
		h.Release()
		(<-waiter).Release()
		if err := m.Close(f.t.Context()); err != nil {
			f.t.Error(err)
		}
		close(events)
		for e := range events {
			if e, ok := e.(lockmgr.RequestWaits); ok {
				if e.Key != file("b") || e.For.Comm != "holder" {
					f.t.Errorf("told %+v", e)
				}
				return
			}
		}
		f.t.Error("nothing was told")
	})
}

// A child that opens a file, by another name, which its parent has is told so,
// though others wait for the file by that name, or came to do so before the parent had it.
func TestChildBehindWhoWaitsForItsParent(t *testing.T) {
	for _, late := range []bool{false, true} {
		inBubble(t, func(f *fixture) {
			if late {
				f.svc.Disconnect()
			}
			parent := f.later(byName("parent", lockmgr.Exclusive, "a"))
			synctest.Wait()
			other := f.later(byName("other", lockmgr.Exclusive, "b"))
			synctest.Wait()
			child := byName("child", lockmgr.Exclusive, "b")
			child.SelfWait = func(context.Context) bool { return true }
			got := make(chan error, 1)
			go func() {
				_, err := f.m.Acquire(f.t.Context(), child)
				got <- err
			}()
			synctest.Wait()
			f.svc.Connect()
			select {
			case err := <-got:
				if !errors.Is(err, lockmgr.ErrDeadlock) {
					f.t.Errorf("got %v", err)
				}
			case <-time.After(time.Hour):
				f.t.Fatal("the child waits for ever")
			}
			(<-parent).Release()
			(<-other).Release()
		})
	}
}

// A reader of a file that would write to it by another name learns that others wait for what it
// shares. It does not wait itself for a reader of that name that waits behind them, here or on
// another mount.
func TestUpgradeByAnotherName(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		t.Run(where, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				f.on(where, func(m *lockmgr.Manager) {
					shared := f.must(byName("pod", lockmgr.Shared, "b"))
					writer := f.laterOn(m, byName("writer", lockmgr.Exclusive, "c"))
					reader := f.later(byName("reader", lockmgr.Shared, "a"))
					synctest.Wait()
					req := byName("pod", lockmgr.Exclusive, "a")
					req.Wait = time.Hour
					f.fails(req, lockmgr.ErrDeadlock, 0)
					shared.Release()
					(<-writer).Release()
					(<-reader).Release()
				})
			})
		})
	}
}

// A request is woken when it may pass the one ahead, which has come to wait for the request's owner.
func TestMayPassInTime(t *testing.T) {
	inBubble(t, func(f *fixture) {
		c, d := f.must(open("c", 0, "one")), f.must(open("d", 0, "two"))
		two := f.later(open("a", -1, "two"))
		both := f.later(open("b", -1, "one", "two"))
		one := f.later(open("a", -1, "one"))
		d.Release()
		mine := []*lockmgr.Hold{<-two}
		c.Release()
		time.Sleep(time.Second)
		select {
		case h := <-one:
			mine = append(mine, h)
		default:
			f.t.Error("it waits for one who waits for its owner")
		}
		for _, h := range mine {
			h.Release()
		}
		(<-both).Release()
		if len(mine) == 1 {
			(<-one).Release()
		}
	})
}
