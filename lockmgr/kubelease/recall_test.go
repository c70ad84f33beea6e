package kubelease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
	renewal "github.com/lockfs/lockfs/renew"
)

func keep(wait lockmgr.Wait, keys ...lockmgr.Key) lockmgr.AcquireRequest {
	req := request(wait, keys...)
	req.Keep = true
	return req
}

// noted returns how many Leases of the volume have the note of a recall, and how many are
// shown to readers of recalls.
func noted(t *testing.T, volume string) (notes, shown int) {
	t.Helper()
	list, err := raw(t).List(within(t, patience), metav1.ListOptions{LabelSelector: "lockfs.io/kind=file"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list.Items {
		if l.Annotations["lockfs.io/volume-name"] != "test/"+volume {
			continue
		}
		if l.Annotations["lockfs.io/recalls"] != "" {
			notes++
		}
		if l.Labels["lockfs.io/recalls"] != "" {
			shown++
		}
	}
	return notes, shown
}

func acquire(t *testing.T, s lockmgr.Session, req lockmgr.AcquireRequest) lockmgr.Grant {
	t.Helper()
	g, err := s.Acquire(within(t, patience), req)
	if err != nil {
		t.Fatal(err)
	}
	return g[0]
}

// What recalls ask of the API server. A waiter in line is the recall, and costs nothing.
func TestRecallRequests(t *testing.T) {
	name, l := newName(), &link{}
	mine := open(t, newBackend(t, name))
	b := newBackendAt(t, l.to(as(mountUser)), name)
	theirs := open(t, b)
	for what, c := range map[string]struct {
		req    lockmgr.AcquireRequest
		writes int
	}{
		"in line":   {request(lockmgr.Queue, file("f")), 1},
		"retry":     {request(lockmgr.Retry, file("f")), 2},
		"directory": {request(lockmgr.Retry, tree("d")), 2},
	} {
		key := file("f")
		if what == "directory" {
			key = file("d/f")
		}
		kept := acquire(t, mine, keep(lockmgr.Queue, key))
		eventually(t, "the watch shows it", func() bool {
			rivals, err := b.Rivals(within(t, patience), key)
			return err == nil && len(rivals) == 1
		})
		before := l.count("create", "update")
		got := start(within(t, patience), theirs, c.req)
		eventually(t, "it is recalled", func() bool { _, shown := noted(t, name); return shown == 1 })
		release(t, mine, kept)
		a := await(t, got)
		if a.Err != nil {
			t.Fatalf("%s: %v", what, a.Err)
		}
		// The watch may be late: then a write is refused, and repeated.
		if n := l.count("create", "update") - before; n < c.writes || n > c.writes+2 {
			t.Errorf("%s: %d writes, want %d", what, n, c.writes)
		}
		release(t, theirs, a.Grants...)
		if notes, shown := noted(t, name); notes+shown > 0 {
			t.Errorf("%s: %d notes are left, %d shown", what, notes, shown)
		}
	}
}

// Delegated directories leave room in the Lease of the directories: for renames, and for recalls.
func TestDelegationsLeaveRoom(t *testing.T) {
	t.Parallel()
	name := newName()
	b := newBackend(t, name)
	mine, theirs := open(t, newBackend(t, name)), open(t, b)
	long := strings.Repeat("/"+strings.Repeat("d", 250), 12)
	n := 0
	for ; ; n++ {
		req := keep(lockmgr.NoWait, tree(fmt.Sprint(n, long)))
		req.Mode = lockmgr.Delegated
		if _, err := mine.Acquire(within(t, patience), req); errors.Is(err, lockmgr.ErrContended) {
			break
		} else if err != nil {
			t.Errorf("a directory too many: %v", err)
			break
		}
	}
	eventually(t, "the watch shows them", func() bool {
		e, err := b.Rivals(within(t, patience), tree(fmt.Sprint(n-1, long)))
		return err == nil && len(e) == 1
	})
	ctx, cancel := context.WithCancel(t.Context())
	waits := make(chan struct{})
	req := request(lockmgr.Queue, file("0"+long+"/f"))
	req.Waits = func() { close(waits) }
	got := start(ctx, theirs, req)
	<-waits
	eventually(t, "the directory is recalled", func() bool { r, err := b.Recalls(within(t, patience)); return err == nil && len(r) == 1 })
	release(t, theirs, must(t, theirs, lockmgr.NoWait, tree("elsewhere"+long))...)
	eventually(t, "the watch stands", func() bool { return kubelease.Connected(b) })
	cancel()
	if err := await(t, got).Err; !errors.Is(err, lockmgr.ErrContended) {
		t.Errorf("an open below a delegated directory: %v", err)
	}
}

// A recall is gone when its request is over, and when its entry is: also one that is noted late.
func TestRecallEnds(t *testing.T) {
	name, l := newName(), &link{}
	b := newBackendAt(t, l.to(as(mountUser)), name)
	mine, theirs := open(t, newBackend(t, name)), open(t, b)
	kept := func(k lockmgr.Key) lockmgr.Grant {
		g := acquire(t, mine, keep(lockmgr.Queue, k))
		eventually(t, "the watch shows it", func() bool { e, err := b.Rivals(within(t, patience), k); return err == nil && len(e) == 1 })
		return g
	}
	f := kept(file("f"))
	ctx, cancel := context.WithCancel(t.Context())
	got := start(ctx, theirs, request(lockmgr.Retry, file("f")))
	eventually(t, "its mount has seen the recall", func() bool { r, err := b.Recalls(within(t, patience)); return err == nil && len(r) == 1 })
	eventually(t, "the watch stands", func() bool { return kubelease.Connected(b) })
	cancel()
	if err := await(t, got).Err; !errors.Is(err, lockmgr.ErrContended) {
		t.Errorf("%v", err)
	}
	eventually(t, "the note of a request that is over is gone", func() bool { notes, shown := noted(t, name); return notes+shown == 0 })

	release(t, mine, f)

	for what, f := range map[string]fate{"swallowed": swallowed, "late": late} {
		k := file(what) // what ends the recall of the one does not change the Lease of the other
		g := kept(k)
		rule, met := first(f, func(c *call) bool { return c.verb == "update" && c.has("lockfs.io/recalls") })
		l.obey(rule)
		if _, err := theirs.Acquire(within(t, patience), request(lockmgr.NoWait, k)); !errors.Is(err, lockmgr.ErrContended) {
			t.Errorf("%v", err)
		}
		if c := <-met; f == late {
			c.send(t)
		}
		l.mend()
		if notes, _ := noted(t, name); f == late && notes != 1 {
			t.Errorf("%d notes", notes)
		}
		release(t, mine, g)
		if notes, shown := noted(t, name); notes+shown > 0 {
			t.Errorf("%d notes are left, %d shown", notes, shown)
		}
		release(t, theirs, must(t, theirs, lockmgr.NoWait, k)...)
	}
}

// A try gets a directory below which many kept files are idle.
func TestTryOfADirectoryWithManyKeptLocks(t *testing.T) {
	name := newName()
	b := newBackend(t, name)
	mine, theirs := open(t, b), open(t, newBackend(t, name))
	var mu sync.Mutex
	kept := make(map[lockmgr.AcquisitionID]lockmgr.Grant)
	for i := range 20 {
		g := acquire(t, mine, keep(lockmgr.NoWait, file(fmt.Sprintf("d/%03d", i))))
		kept[g.AcquisitionID] = g
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		b.WatchRecalls(ctx, func(r lockmgr.Recall) {
			for _, id := range r.Entries {
				mu.Lock()
				g, ok := kept[id]
				delete(kept, id)
				mu.Unlock()
				if ok {
					if err := mine.Release(t.Context(), g); err != nil { // also the last one, whose answer is late
						t.Error(err)
					}
				}
			}
		})
	}()
	defer func() { cancel(); <-over }()
	if _, err := theirs.Acquire(within(t, patience), request(lockmgr.NoWait, tree("d"))); err != nil {
		t.Error(err)
	}
}

// manager is a mount.
func manager(t *testing.T, b *newMount) *lockmgr.Manager {
	t.Helper()
	m, err := lockmgr.New(t.Context(), lockmgr.Config{
		Backend: b.backend(t), Keep: time.Minute,
		Session: lockmgr.SessionInfo{Node: b.node}, Renew: renewal.Config{TTL: time.Minute},
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := m.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return m
}

type newMount struct {
	node string
	link *link
	name string
}

func (m *newMount) backend(t *testing.T) lockmgr.Backend {
	return newBackendAt(t, m.link.to(as(mountUser)), m.name)
}

// Another mount gets a lock that is kept and used again and again, also if the watch of its mount
// shows nothing more, and if its reads of recalls are refused or not answered.
func TestRecallIsHeard(t *testing.T) {
	for what, fault := range map[string]func(*link){
		"watch stands": func(*link) {},
		"watch hangs":  func(l *link) { l.hung.Store(true) },
		"watch hangs, reads are refused": func(l *link) {
			l.hung.Store(true)
			l.obey(func(c *call) fate {
				if c.verb == "list" {
					return busy
				}
				return passed
			})
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			name, l := newName(), &link{}
			keeps := manager(t, &newMount{"keeps", l, name})
			wants := manager(t, &newMount{"wants", &link{}, name})
			ctx, cancel := context.WithCancel(t.Context())
			req := func(owner lockmgr.Owner) lockmgr.Request {
				return lockmgr.Request{Owner: owner, Keys: []lockmgr.Key{file("f")}, Queue: true, Wait: -1}
			}
			opens := make(chan int64, 1)
			var busy sync.WaitGroup
			defer busy.Wait()
			defer cancel()
			busy.Go(func() {
				var last int64
				pace := time.NewTicker(50 * time.Millisecond) // a kept lock has 4,096 owners at most
				defer pace.Stop()
				for range pace.C {
					h, err := keeps.Acquire(ctx, req("a"))
					if err != nil {
						return
					}
					if token := h.Token(file("f")); token <= last {
						t.Errorf("token %d after %d", token, last)
					} else {
						last = token
					}
					h.Release()
					select {
					case opens <- last:
					default:
					}
				}
			})
			eventually(t, "the lock is kept", func() bool { return <-opens&(1<<12-1) > 0 })
			fault(l)
			h, err := wants.Acquire(within(t, patience), req("b"))
			if err != nil {
				t.Fatal(err)
			}
			h.Release()
			l.mend()
			l.hung.Store(false)
			l.hangUp()
		})
	}
}

// One mount, within the default limit of requests, opens one file again and again, or each file
// once: docs/KUBERNETES.md has the figures.
func BenchmarkKept(b *testing.B) {
	for _, keep := range []time.Duration{0, 2 * time.Second} {
		for what, path := range map[string]func(int) string{
			"one file":  func(int) string { return "f" },
			"each once": func(i int) string { return fmt.Sprint("f", i) },
		} {
			b.Run(fmt.Sprintf("%s/keep=%v", what, keep), func(b *testing.B) {
				l := &link{}
				conf := as(mountUser)
				conf.QPS, conf.Burst = 50, 100
				client, err := kubelease.NewClient(l.to(conf))
				if err != nil {
					b.Fatal(err)
				}
				backend, err := kubelease.New(kubelease.Config{Client: client, Namespace: "bench", Name: newName(), LeaseNamespace: space})
				if err != nil {
					b.Fatal(err)
				}
				defer backend.Close()
				m, err := lockmgr.New(b.Context(), lockmgr.Config{
					Backend: backend, Keep: keep, Session: lockmgr.SessionInfo{Node: "n"}, Renew: renewal.Config{TTL: 15 * time.Second},
					Logger: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					b.Fatal(err)
				}
				defer m.Close(b.Context())
				before := l.count("create", "update", "get", "list")
				b.ResetTimer()
				for i := range b.N {
					h, err := m.Acquire(b.Context(), lockmgr.Request{Owner: "a", Keys: []lockmgr.Key{file(path(i))}, Queue: true, Wait: -1})
					if err != nil {
						b.Fatal(err)
					}
					h.Release()
				}
				b.StopTimer()
				b.ReportMetric(float64(l.count("create", "update", "get", "list")-before)/float64(b.N), "requests/op")
			})
		}
	}
}
