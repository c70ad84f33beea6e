package etcdlock_test

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// flaw is what goes wrong with one Txn that compares: an acquisition, a fence, a
// release. Those that only read are left alone.
type flaw int

const (
	lostReply   flaw = iota + 1 // carried out, not answered
	lateRequest                 // not answered; carried out when the test says so
	lastOne                     // carried out, and answered that it leaves no space: see quotaApplierV3 of etcd
)

// flawedKV breaks the comparing Txns it was told to break, and counts all.
type flawedKV struct {
	sent atomic.Int64

	mu    sync.Mutex
	flaws []flaw // of the next Txns
	broke func() // what happens next, once, when one is broken
	late  []func() (*clientv3.TxnResponse, error)
}

// flawed returns a client of its own whose Txns can be broken.
func flawed(t *testing.T) (*clientv3.Client, *flawedKV) {
	client := dial(t)
	kv := &flawedKV{}
	onTxn(client, kv.commit)
	return client, kv
}

func (kv *flawedKV) next(flaws ...flaw) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	kv.flaws = flaws
}

// broken reports whether all flaws have been met.
func (kv *flawedKV) broken() bool {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	return len(kv.flaws) == 0
}

// deliver carries out the late requests.
func (kv *flawedKV) deliver(t *testing.T) {
	t.Helper()
	kv.mu.Lock()
	late := kv.late
	kv.late = nil
	kv.mu.Unlock()
	if len(late) == 0 {
		t.Fatal("no request is late")
	}
	for _, commit := range late {
		if _, err := commit(); err != nil {
			t.Logf("late request: %v", err)
		}
	}
}

// then has f happen when the first of the flaws was met, before the client knows.
func (kv *flawedKV) then(f func()) {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	kv.broke = f
}

func (kv *flawedKV) commit(t *txn) (*clientv3.TxnResponse, error) {
	if !changes(t) {
		return t.send()
	}
	resp, err := kv.spoil(t)
	if err == nil {
		return resp, nil
	}
	kv.mu.Lock()
	broke := kv.broke
	kv.broke = nil
	kv.mu.Unlock()
	if broke != nil {
		broke()
	}
	return nil, err
}

func (kv *flawedKV) spoil(t *txn) (*clientv3.TxnResponse, error) {
	kv.sent.Add(1)
	t.ctx = context.WithoutCancel(t.ctx)
	switch kv.take(t.send) {
	case lostReply:
		if _, err := t.send(); err != nil {
			return nil, err
		}
		fallthrough
	case lateRequest:
		return nil, status.Error(codes.Unavailable, "the connection broke")
	case lastOne:
		if _, err := t.send(); err != nil {
			return nil, err
		}
		return nil, rpctypes.ErrNoSpace
	default:
		return t.send()
	}
}

func (kv *flawedKV) take(commit func() (*clientv3.TxnResponse, error)) flaw {
	kv.mu.Lock()
	defer kv.mu.Unlock()
	if len(kv.flaws) == 0 {
		return 0
	}
	f := kv.flaws[0]
	kv.flaws = kv.flaws[1:]
	if f == lateRequest {
		kv.late = append(kv.late, commit)
	}
	return f
}

// flawedWatcher refuses watches, as a member without a leader does, or tells them
// of nothing, as one that hangs. It counts those that stand.
type flawedWatcher struct {
	clientv3.Watcher
	refuse atomic.Bool
	deaf   atomic.Bool
	stood  atomic.Int64

	mu      sync.Mutex
	refused map[string]int // by key. GUARDED_BY(mu)
}

// watchFlawed puts a flawedWatcher into client.
func watchFlawed(client *clientv3.Client) *flawedWatcher {
	w := &flawedWatcher{Watcher: client.Watcher, refused: make(map[string]int)}
	client.Watcher = w
	return w
}

func (w *flawedWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	if w.refuse.Load() {
		w.mu.Lock()
		w.refused[key]++
		w.mu.Unlock()
		ch := make(chan clientv3.WatchResponse)
		close(ch)
		return ch
	}
	feed := w.Watcher.Watch(ctx, key, opts...) // returns when the watch stands
	w.stood.Add(1)
	if w.deaf.Load() {
		created := make(chan clientv3.WatchResponse, 1)
		created <- <-feed
		go func() {
			defer close(created)
			for range feed { // until the watch is cancelled
			}
		}()
		return created
	}
	return feed
}

// refusals is how often a watch of key was refused.
func (w *flawedWatcher) refusals(key string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused[key]
}

// link is a connection to etcd that can be cut, or freeze.
type link struct {
	t    *testing.T
	path string

	frozen sync.RWMutex // for reading: something passes
	passed atomic.Int64 // pieces of what the two have said

	mu       sync.Mutex
	listener net.Listener // nil while cut
	conns    []net.Conn
	running  sync.WaitGroup
}

// linked returns a client behind a link.
func linked(t *testing.T) (*clientv3.Client, *link) {
	l := newLink(t)
	return dialAt(t, l.endpoint()), l
}

func newLink(t *testing.T) *link {
	l := &link{t: t, path: filepath.Join(filepath.Dir(endpointPath()), "link-"+newName())}
	l.heal()
	t.Cleanup(func() {
		l.cut()
		l.running.Wait()
	})
	return l
}

func (l *link) endpoint() string { return "unix://" + l.path }

func (l *link) heal() {
	listener, err := net.Listen("unix", l.path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	l.listener = listener
	l.mu.Unlock()
	l.running.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", endpointPath())
			if err != nil {
				near.Close()
				continue
			}
			l.join(listener, near, far)
		}
	})
}

func (l *link) join(via net.Listener, near, far net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != via { // cut since
		near.Close()
		far.Close()
		return
	}
	l.conns = append(l.conns, near, far)
	for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
		l.running.Go(func() {
			_, _ = io.Copy(pair[0], thawed{pair[1], l})
			pair[0].Close()
		})
	}
}

func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		l.listener.Close()
		l.listener = nil
	}
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

// thawed reads what comes while nothing is frozen.
type thawed struct {
	io.Reader
	l *link
}

func (r thawed) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.l.passed.Add(1)
	r.l.frozen.RLock()
	defer r.l.frozen.RUnlock()
	return n, err
}
