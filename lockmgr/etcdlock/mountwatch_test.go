package etcdlock_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// listedWatcher knows which watches have stood.
type listedWatcher struct {
	clientv3.Watcher
	mu   sync.Mutex
	keys map[string]bool // GUARDED_BY(mu)
}

func listWatches(client *clientv3.Client) *listedWatcher {
	w := &listedWatcher{Watcher: client.Watcher, keys: make(map[string]bool)}
	client.Watcher = w
	return w
}

func (w *listedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	feed := w.Watcher.Watch(ctx, key, opts...) // returns when the watch stands
	w.mu.Lock()
	w.keys[key] = true
	w.mu.Unlock()
	return feed
}

func (w *listedWatcher) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(maps.Keys(w.keys))
}

// labelled counts the goroutines that were begun under pprof.Do with the label.
func labelled(t *testing.T, label string) (n int) {
	t.Helper()
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		t.Fatal(err)
	}
	group := regexp.MustCompile(`(?m)^(\d+) @ .*\n# labels: .*"` + label + `"`)
	for _, m := range group.FindAllSubmatch(profile.Bytes(), -1) {
		count, err := strconv.Atoi(string(m[1]))
		if err != nil {
			t.Fatal(err)
		}
		n += count
	}
	return n
}

// A mount has three watches, and as many goroutines, however many locks it holds, kept ones
// included. Sessions, of 5,000 locks each, add no watch.
func TestOneWatchOfAMount(t *testing.T) {
	name := newName()
	pprof.Do(t.Context(), pprof.Labels("mount", name), func(ctx context.Context) {
		client := dial(t)
		watches := listWatches(client)
		m, err := lockmgr.New(ctx, lockmgr.Config{
			Backend: newBackend(t, client, name), Keep: time.Minute, KeysPerSession: 1000,
			Renew: renew.Config{TTL: time.Minute}, Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		hold := func(from, to int) {
			for ; from < to; from += 50 {
				var keys []lockmgr.Key
				for i := range 50 {
					keys = append(keys, file(fmt.Sprintf("d/%d", from+i)))
				}
				if _, err := m.Acquire(within(t, patience), lockmgr.Request{Owner: "o", Keys: keys, Queue: true, Wait: patience}); err != nil {
					t.Fatal(err)
				}
			}
		}
		use := func() { // a file again and again: its lock is kept
			for range 3 {
				h, err := m.Acquire(within(t, patience), lockmgr.Request{Owner: "o", Keys: []lockmgr.Key{file("again")}, Queue: true, Wait: patience})
				if err != nil {
					t.Fatal(err)
				}
				h.Release()
			}
		}
		hold(0, 50)
		use()
		eventually(t, "it watches", func() bool { return len(watches.list()) == 3 })
		settled, last := 0, 0
		eventually(t, "all goroutines are begun", func() bool {
			n := labelled(t, name)
			if settled++; n != last {
				settled, last = 0, n
			}
			return settled > 20
		})
		hold(50, 950)
		use()
		eventually(t, fmt.Sprintf("no more than %d goroutines", last), func() bool { return labelled(t, name) <= last })
		hold(950, 3000)
		if keys := watches.list(); len(keys) != 3 {
			t.Errorf("it watches %q", keys)
		}
		if err := m.Close(within(t, patience)); err != nil {
			t.Error(err)
		}
	})
}

// What a watch that hangs does not show, a read does: a break, a recall, the end of a session.
func TestDeafMountWatch(t *testing.T) {
	client := dial(t)
	watchFlawed(client).deaf.Store(true)
	name := newName()
	b := newBackend(t, client, name, func(cfg *etcdlock.Config) { cfg.JanitorInterval = 50 * time.Millisecond })
	breaks, recalls := make(chan lockmgr.Break, 100), make(chan lockmgr.Recall, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		b.WatchBreaks(ctx, func(br lockmgr.Break) {
			select {
			case breaks <- br:
			default:
			}
		})
	})
	watching.Go(func() {
		b.WatchRecalls(ctx, func(r lockmgr.Recall) {
			select {
			case recalls <- r:
			default:
			}
		})
	})
	s := open(t, b)
	req := request(lockmgr.NoWait, file("f"))
	req.Keep = true
	kept := acquire(t, s, req)[0]

	other := newBackend(t, dial(t), name)
	if err := other.PutBreak(within(t, patience), lockmgr.Break{ID: uuid.New(), Path: "f", AcquisitionID: kept.AcquisitionID, Token: kept.Token}); err != nil {
		t.Fatal(err)
	}
	next := start(within(t, patience), open(t, other), request(lockmgr.Queue, file("f")))
	for what, told := range map[string]func() bool{
		"a break":  func() bool { return (<-breaks).AcquisitionID == kept.AcquisitionID },
		"a recall": func() bool { return slices.Contains((<-recalls).Entries, kept.AcquisitionID) },
	} {
		done := make(chan bool, 1)
		go func() { done <- told() }()
		select {
		case right := <-done:
			if !right {
				t.Errorf("told of another than %s", what)
			}
		case <-time.After(patience):
			t.Fatalf("not told of %s", what)
		}
	}
	if err := other.Revoke(within(t, patience), s.ID()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Error("not told of the end of its session")
	}
	if a := lockmgrtest.Await(t, next); a.Err != nil {
		t.Error(a.Err)
	}
}

// The end of another mount's session, of another session of the mount, and of a session whose
// id begins alike, is not the end of a session.
func TestOwnSessionEnds(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	first, second := open(t, b), open(t, b)
	theirs := open(t, newBackend(t, dial(t), etcd.name))
	longer := etcd.admin("session/" + first.ID() + "0")
	if _, err := etcd.Put(t.Context(), longer, "{}"); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{longer, etcd.admin("session/" + theirs.ID()), etcd.admin("session/" + second.ID())} {
		if _, err := etcd.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []lockmgr.Session{second, theirs} {
		select {
		case <-s.Done():
		case <-time.After(patience):
			t.Fatal("not told of the end of its session")
		}
	}
	select {
	case <-first.Done():
		t.Error("ended by the end of another")
	default:
	}
	release(t, first, must(t, first, lockmgr.NoWait, file("f"))...)
}

// A session that is opened while the mount reads what stands does not end because the read lacks its
// record.
func TestReadFromBeforeASession(t *testing.T) {
	client := dial(t)
	var armed atomic.Bool
	var reads atomic.Int64
	read, goOn := make(chan struct{}), make(chan struct{})
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		resp, err := x.send()
		if len(x.then) == 3 && strings.HasSuffix(string(x.then[0].KeyBytes()), "/break/") {
			reads.Add(1)
			if armed.CompareAndSwap(true, false) {
				close(read)
				select {
				case <-goOn:
				case <-x.ctx.Done():
				}
			}
		}
		return resp, err
	})
	b := newBackend(t, client, newName(), func(cfg *etcdlock.Config) { cfg.JanitorInterval = 10 * time.Millisecond })
	first := open(t, b)
	armed.Store(true)
	<-read
	second := open(t, b)
	before := reads.Load()
	close(goOn)
	eventually(t, "the mount has taken in what it read", func() bool { return reads.Load() > before })
	for _, s := range []lockmgr.Session{first, second} {
		select {
		case <-s.Done():
			t.Error("a session has ended")
		default:
		}
	}
}
