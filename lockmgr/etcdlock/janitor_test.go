package etcdlock_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// logged is a log that a test reads.
type logged struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logged) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.buf.String(), s)
}

// busy returns a backend of the volume whose sessions hardly rest from looking.
func busy(t *testing.T, client *clientv3.Client, name string) (*etcdlock.Backend, *logged) {
	t.Helper()
	log := &logged{}
	b, err := etcdlock.New(etcdlock.Config{
		Client: client, Namespace: "test", Name: name, RequestTimeout: patience,
		CheckInterval: time.Millisecond, JanitorInterval: time.Millisecond, Logger: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	return b, log
}

// look has sessions look for what they have in etcd, until the test ends; nothing
// of it is missed.
func look(t *testing.T, sessions ...lockmgr.Session) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	for _, s := range sessions {
		looking.Go(func() {
			s.Watch(ctx, func() []lockmgr.Grant { return nil }, func(g lockmgr.Grant) { t.Errorf("%v is missed", g) })
		})
	}
	t.Cleanup(func() { cancel(); looking.Wait() })
}

func put(t *testing.T, etcd raw, key string, lease clientv3.LeaseID) {
	t.Helper()
	if _, err := etcd.Put(t.Context(), key, "{}", clientv3.WithLease(lease)); err != nil {
		t.Fatal(err)
	}
}

// keys returns all keys of the volume.
func keys(t *testing.T, etcd raw) []string {
	t.Helper()
	var keys []string
	for _, prefix := range []string{"/locks/test/" + etcd.name + "/", etcd.admin("")} {
		resp, err := etcd.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}

// An entry on the session's lease that nobody claims goes; what is held, and what
// others have, stays.
func TestOrphans(t *testing.T) {
	name := newName()
	etcd := raw{dial(t), name}
	b, log := busy(t, dial(t), name)
	quiet := open(t, newBackend(t, dial(t), name))
	s := open(t, b)
	look(t, s)
	held := slices.Concat(must(t, s, lockmgr.Queue, file("f"), lockmgr.Key{Kind: lockmgr.Inode, Path: "7"}), must(t, s, lockmgr.Retry, tree("d")))
	held = append(held, acquire(t, s, shared(lockmgr.Queue, file("r")))...)
	theirs := etcd.file("orphan") + uuid.NewString()
	foreign := etcd.admin("something")
	put(t, etcd, theirs, leaseOf(t, quiet))
	put(t, etcd, foreign, leaseOf(t, s))
	before := keys(t, etcd)
	for _, orphan := range []string{etcd.file("f"), etcd.reader("r"), etcd.dir("e"), etcd.admin("inode/9//w/")} {
		put(t, etcd, orphan+uuid.NewString(), leaseOf(t, s))
	}
	eventually(t, "the orphans are gone, and nothing else", func() bool { return slices.Equal(keys(t, etcd), before) })
	if !log.has("that nobody claims") {
		t.Error("nobody was told")
	}
	release(t, s, held...)
}

// An entry of the session that a release found with another token goes, too.
func TestOrphanOfARelease(t *testing.T) {
	etcd := raw{dial(t), newName()}
	b, _ := busy(t, dial(t), etcd.name)
	s := open(t, b)
	g := must(t, s, lockmgr.NoWait, file("f"))[0]
	key := etcd.file("f") + g.AcquisitionID.String()
	if _, err := etcd.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	put(t, etcd, key, leaseOf(t, s))
	look(t, s)
	if err := s.Release(within(t, patience), g); !errors.Is(err, lockmgr.ErrNotOwner) {
		t.Fatal(err)
	}
	eventually(t, "it is gone", func() bool { return len(entries(t, b)) == 0 })
}

// What is without a lease is deleted, if it is an entry or a session's record,
// by the mount that has been there for longest.
func TestSweep(t *testing.T) {
	name := newName()
	etcd := raw{dial(t), name}
	if _, err := newBackend(t, dial(t), name).VolumeRecord(t.Context(), []byte("{}"), nil); err != nil {
		t.Fatal(err)
	}
	orphan := etcd.admin("session/1")
	put(t, etcd, orphan, 0) // older than any
	quiet := open(t, newBackend(t, dial(t), name))
	b, log := busy(t, dial(t), name)
	s := open(t, b)
	held := slices.Concat(must(t, s, lockmgr.Retry, tree("d")), must(t, s, lockmgr.Queue, file("f"))) // the first makes a stamp
	id := uuid.NewString()
	stays := []string{etcd.admin("break/" + id), etcd.admin("tree/x"), etcd.file("f") + "foreign"}
	for _, key := range stays {
		put(t, etcd, key, 0)
	}
	before := slices.DeleteFunc(keys(t, etcd), func(k string) bool { return k == orphan })
	for _, key := range []string{etcd.file("f") + id, etcd.reader("a/b") + id, etcd.dir("d") + id, etcd.admin("inode/7//w/") + id, etcd.admin("session/2")} {
		put(t, etcd, key, 0)
	}
	if list := entries(t, b); len(list) != 6 {
		t.Fatalf("the younger mount has swept: %v", list)
	}
	record := etcd.admin("session/" + quiet.ID())
	if err := quiet.Close(within(t, patience)); err != nil {
		t.Fatal(err)
	}
	before = slices.DeleteFunc(before, func(k string) bool { return k == record })
	eventually(t, "it is swept, and nothing else", func() bool { return slices.Equal(keys(t, etcd), before) })
	for _, prefix := range []string{etcd.admin("stamp/"), etcd.admin("volume")} {
		if !slices.ContainsFunc(before, func(k string) bool { return strings.HasPrefix(k, prefix) }) {
			t.Errorf("%s was not there to be spared", prefix)
		}
	}
	if !log.has("without a lease") {
		t.Error("nobody was told")
	}
	release(t, s, held...)
}

// A sweep reads the volume page by page, past all that has a lease.
func TestSweepOfMany(t *testing.T) {
	name := newName()
	etcd := raw{dial(t), name}
	lease, err := etcd.Grant(t.Context(), 3600)
	if err != nil {
		t.Fatal(err)
	}
	var ops []clientv3.Op
	for range 1100 { // more than a page
		ops = append(ops, clientv3.OpPut(etcd.file("e")+uuid.NewString(), "{}", clientv3.WithLease(lease.ID)))
	}
	for range 10 {
		ops = append(ops, clientv3.OpPut(etcd.file("f")+uuid.NewString(), "{}"))
	}
	for chunk := range slices.Chunk(ops, 100) {
		if _, err := etcd.Txn(t.Context()).Then(chunk...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	b, _ := busy(t, dial(t), name)
	open(t, b)
	for left := int64(10); left > 0; {
		before := left
		eventually(t, "the sweep goes on", func() bool {
			keys, err := etcd.Get(within(t, patience), etcd.file("f"), clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatal(err)
			}
			left = keys.Count
			return left < before
		})
	}
}

// An entry without a lease that is put again on one, after it was read, stays.
func TestSweepBesideAPut(t *testing.T) {
	client := dial(t)
	etcd := raw{dial(t), newName()}
	again, other := etcd.file("a")+uuid.NewString(), etcd.file("b")+uuid.NewString()
	var lease atomic.Int64
	onTxn(client, func(x *txn) (*clientv3.TxnResponse, error) {
		if len(x.then) == 1 && x.then[0].IsDelete() && string(x.then[0].KeyBytes()) == again {
			if _, err := etcd.Put(x.ctx, again, "{}", clientv3.WithLease(clientv3.LeaseID(lease.Load()))); err != nil {
				t.Error(err)
			}
		}
		return x.send()
	})
	b, _ := busy(t, client, etcd.name)
	lease.Store(int64(leaseOf(t, open(t, b))))
	if _, err := etcd.Txn(t.Context()).Then(clientv3.OpPut(again, "{}"), clientv3.OpPut(other, "{}")).Commit(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the other is swept", func() bool { return !slices.Contains(keys(t, etcd), other) })
	if !slices.Contains(keys(t, etcd), again) {
		t.Error("it is swept, too")
	}
}

// Whatever is on its way, or held, is left alone by sessions that look all the
// time: acquisitions of each kind, abandoned ones, and some that are not answered.
func TestLookAmongOthers(t *testing.T) {
	name := newName()
	client, kv := flawed(t)
	b, log := busy(t, client, name)
	sessions := []lockmgr.Session{open(t, b), open(t, b)}
	look(t, sessions...)
	ctx := within(t, 2*patience)
	var running sync.WaitGroup
	for w := range 16 {
		s := sessions[w%2]
		running.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for i := range 25 {
				req := request(lockmgr.Wait(r.IntN(3)), file(string(rune('a'+r.IntN(6)))))
				req.Mode = lockmgr.Mode(r.IntN(2))
				brief, cancel := ctx, context.CancelFunc(func() {})
				if r.IntN(4) == 0 {
					brief, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(3000))*time.Microsecond)
				}
				if w == 0 && i%5 == 0 {
					kv.next(lostReply, lateRequest, lostReply)
				}
				grants, err := s.Acquire(brief, req)
				cancel()
				if err != nil {
					continue // refused, given up or not answered
				}
				if held, err := s.Held(ctx, grants); err == nil && !held[0] {
					t.Errorf("%v is gone", grants[0])
				}
				for first := true; ; first = false {
					err := s.Release(ctx, grants[0])
					if err == nil || !first && errors.Is(err, lockmgr.ErrNotHeld) {
						break
					}
					if !errors.Is(err, lockmgr.ErrUnavailable) || ctx.Err() != nil {
						t.Errorf("Release: %v", err)
						return
					}
				}
			}
		})
	}
	running.Wait()
	if log.has("that nobody claims") {
		t.Error("an entry of an acquisition was deleted")
	}
	eventually(t, "nothing is left", func() bool { return len(entries(t, b)) == 0 })
}
