package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/renew"
)

// A staged mount is 'lockfs mount' in its own process, with a boot-time clock that the test sets
// forward, even while the process is frozen, and a client of etcd that stops where the test says.

// stagedEnv makes the test binary a staged mount.
const stagedEnv = "LOCKFS_TEST_STAGED"

// Stage is a step of a lock's acquisition, as the mount's etcd client sees it.
type Stage string

const (
	Sending Stage = "before the Put"
	Sent    Stage = "after the Put, before its answer"
	Granted Stage = "at the grant" // the holder's deletion has arrived, and is not delivered
	Renewed Stage = "after a renewal, before its answer"
)

// command is a line of the test's to the mount.
type command struct {
	StopAt Stage // the next one that gets there stops, and says so
	Go     bool  // lets it go
}

// stagedConfig is the value of stagedEnv.
type stagedConfig struct {
	Source, Mountpoint, State, Endpoint, Clock string

	// Doubts is the age at which a request that is stopped is asked again, and for how long a call
	// that cannot queue bears that; 0: the defaults.
	Doubts time.Duration
}

// serveStaged serves a view until SIGTERM.
func serveStaged() {
	var cfg stagedConfig
	if err := json.Unmarshal([]byte(os.Getenv(stagedEnv)), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "staged:", err)
		os.Exit(1)
	}
	ahead, err := mapClock(cfg.Clock)
	if err != nil {
		fmt.Fprintln(os.Stderr, "staged:", err)
		os.Exit(1)
	}
	s := &stops{ahead: ahead, out: json.NewEncoder(os.Stdout)}
	go s.obey(json.NewDecoder(os.Stdin))
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	err = serve.New(serve.Config{
		Namespace: "default", Name: filepath.Base(cfg.Source), Source: cfg.Source, Mountpoint: cfg.Mountpoint,
		Connect: func(ctx context.Context, log *slog.Logger) (serve.Backend, func(), error) {
			client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{Endpoints: []string{cfg.Endpoint}, Logger: log})
			if err != nil {
				return nil, nil, err
			}
			client.KV, client.Watcher, client.Lease = stoppingKV{client.KV, s}, stoppingWatcher{client.Watcher, s}, stoppingLease{client.Lease, s}
			b, err := etcdlock.New(etcdlock.Config{
				Client: client, Namespace: "default", Name: filepath.Base(cfg.Source), RequestTimeout: cfg.Doubts, Logger: log,
			})
			return b, func() { client.Close() }, err
		},
		Renew: renew.Config{TTL: 15 * time.Second, Clock: s}, Wait: -1, NameWait: cfg.Doubts,
		Node: filepath.Base(cfg.Mountpoint), StateDir: cfg.State, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}).Run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "staged:", err)
		os.Exit(1)
	}
}

// stops is the clock, and where the mount stops.
type stops struct {
	out   *json.Encoder
	ahead *atomic.Int64 // how far the clock was set forward

	mu   sync.Mutex
	at   Stage
	free chan struct{} // closed by Go
}

func (s *stops) Now() boottime.Instant {
	return boottime.System{}.Now() + boottime.Instant(s.ahead.Load())
}

// mapClock shares what a clock is ahead by among processes.
func mapClock(path string) (*atomic.Int64, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(8); err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*atomic.Int64)(unsafe.Pointer(&m[0])), nil
}

func (s *stops) obey(in *json.Decoder) {
	for {
		var c command
		err := in.Decode(&c)
		s.mu.Lock()
		switch {
		case c.StopAt != "":
			s.at, s.free = c.StopAt, make(chan struct{})
		case s.free != nil && (c.Go || err != nil):
			close(s.free)
			s.at, s.free = "", nil
		}
		if err != nil { // the test is over
			s.mu.Unlock()
			return
		}
		_ = s.out.Encode(Stage("done"))
		s.mu.Unlock()
	}
}

// reach stops at a stage if it is the one, until ctx ends.
func (s *stops) reach(ctx context.Context, at Stage) {
	s.mu.Lock()
	if s.at != at {
		s.mu.Unlock()
		return
	}
	s.at = ""
	free := s.free
	_ = s.out.Encode(at)
	s.mu.Unlock()
	select {
	case <-free:
	case <-ctx.Done():
	}
}

type stoppingKV struct {
	clientv3.KV
	stops *stops
}

func (kv stoppingKV) Txn(ctx context.Context) clientv3.Txn {
	return &stoppingTxn{Txn: kv.KV.Txn(ctx), ctx: ctx, stops: kv.stops}
}

type stoppingTxn struct {
	clientv3.Txn
	ctx   context.Context
	stops *stops
	locks bool // it puts entries
}

func (t *stoppingTxn) If(cs ...clientv3.Cmp) clientv3.Txn { t.Txn = t.Txn.If(cs...); return t }

func (t *stoppingTxn) Then(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.locks = t.Txn.Then(ops...), t.locks || putEntries(ops)
	return t
}

func (t *stoppingTxn) Else(ops ...clientv3.Op) clientv3.Txn {
	t.Txn, t.locks = t.Txn.Else(ops...), t.locks || putEntries(ops)
	return t
}

func putEntries(ops []clientv3.Op) bool {
	for _, op := range ops {
		if op.IsTxn() {
			_, then, els := op.Txn()
			if putEntries(then) || putEntries(els) {
				return true
			}
		}
		if op.IsPut() && strings.HasPrefix(string(op.KeyBytes()), "/locks/") {
			return true
		}
	}
	return false
}

func (t *stoppingTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.locks {
		return t.Txn.Commit()
	}
	t.stops.reach(t.ctx, Sending)
	resp, err := t.Txn.Commit()
	t.stops.reach(t.ctx, Sent)
	return resp, err
}

type stoppingWatcher struct {
	clientv3.Watcher
	stops *stops
}

func (w stoppingWatcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	feed := w.Watcher.Watch(ctx, key, opts...)
	if !strings.HasPrefix(key, "/locks/") {
		return feed
	}
	out := make(chan clientv3.WatchResponse)
	go func() {
		defer close(out)
		for resp := range feed {
			if len(resp.Events) > 0 {
				w.stops.reach(ctx, Granted)
			}
			select {
			case out <- resp:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

type stoppingLease struct {
	clientv3.Lease
	stops *stops
}

func (l stoppingLease) KeepAliveOnce(ctx context.Context, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := l.Lease.KeepAliveOnce(ctx, id)
	l.stops.reach(ctx, Renewed)
	return resp, err
}

// staged is the test's end of a staged mount.
type staged struct {
	*Mount
	in    *json.Encoder
	out   *json.Decoder
	Ahead *atomic.Int64
}

// Staged starts a staged mount, next to one that serves the volume's etcd. It asks again for what is
// stopped for longer than doubts; 0: the default of etcdlock.
func (v *Volume) Staged(name string, doubts time.Duration) (s *staged) {
	v.T.Helper()
	v.mounted(func() *Mount {
		s = v.startStaged(name, doubts)
		return s.Mount
	})
	return s
}

func (v *Volume) startStaged(name string, doubts time.Duration) *staged {
	v.T.Helper()
	m := &Mount{T: v.T, Vol: v, Name: name, Dir: filepath.Join(v.Dir, name), Log: &LogBuffer{}, Done: make(chan struct{})}
	clock := filepath.Join(v.Dir, "clock-"+name)
	ahead, err := mapClock(clock)
	if err != nil {
		v.T.Fatal(err)
	}
	config, err := json.Marshal(stagedConfig{v.Source, m.Dir, v.State, v.Endpoint(), clock, doubts})
	if err != nil {
		v.T.Fatal(err)
	}
	if err := os.Mkdir(m.Dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		v.T.Fatal(err)
	}
	m.Cmd = exec.Command(os.Args[0])
	m.Cmd.Env = append(v.Env, stagedEnv+"="+string(config))
	m.Cmd.Stderr = m.Log
	in, err := m.Cmd.StdinPipe()
	if err != nil {
		v.T.Fatal(err)
	}
	out, pipe := io.Pipe()
	m.Cmd.Stdout = pipe
	if err := m.Cmd.Start(); err != nil {
		v.T.Fatal(err)
	}
	go func() {
		m.Err = m.Cmd.Wait()
		pipe.Close()
		close(m.Done)
	}()
	v.T.Cleanup(m.Cleanup)
	s := &staged{Mount: m, in: json.NewEncoder(in), out: json.NewDecoder(out), Ahead: ahead}
	v.T.Cleanup(func() { in.Close() })
	return s
}

// Sleeps is a sleep of the mount's machine, of an hour, and what others do meanwhile.
func (s *staged) Sleeps(meanwhile func()) {
	s.T.Helper()
	Freeze(s.T, s.Cmd.Process.Pid)
	s.Ahead.Add(int64(time.Hour))
	meanwhile()
	if err := s.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		s.T.Fatal(err)
	}
}

func (s *staged) do(o command) {
	s.T.Helper()
	if err := s.in.Encode(o); err != nil {
		s.T.Fatal(err)
	}
	s.reached("done")
}

// reached returns when the mount says that it has got there.
func (s *staged) reached(what Stage) {
	s.T.Helper()
	told := make(chan Stage, 1)
	go func() {
		var at Stage
		_ = s.out.Decode(&at)
		told <- at
	}()
	select {
	case at := <-told:
		if at != what {
			s.T.Fatalf("%s says %q, want %q", s.Name, at, what)
		}
	case <-time.After(CallTimeout):
		s.T.Fatalf("%s does not get %q", s.Name, what)
	}
}

// During stops the mount at a stage, which begin brings about, for as long as f takes.
func (s *staged) During(at Stage, begin, f func()) {
	s.T.Helper()
	s.do(command{StopAt: at})
	begin()
	s.reached(at)
	f()
	s.do(command{Go: true})
}
