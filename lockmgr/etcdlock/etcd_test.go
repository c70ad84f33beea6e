package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

const patience = lockmgrtest.Patience

// For short.
var (
	within     = lockmgrtest.Within
	eventually = lockmgrtest.Eventually
	request    = lockmgrtest.Request
	shared     = lockmgrtest.Shared
	acquire    = lockmgrtest.Acquire
	must       = lockmgrtest.Must
	release    = lockmgrtest.Release
	start      = lockmgrtest.Start
	await      = lockmgrtest.Await
	file       = lockmgrtest.File
	tree       = lockmgrtest.Tree
	serviceOf  = lockmgrtest.ServiceOf
	found      = lockmgrtest.FoundService
	mustRecord = lockmgrtest.MustRecord
	openErr    = lockmgrtest.OpenErr
)

func open(t *testing.T, b lockmgr.Backend) lockmgr.Session {
	t.Helper()
	return lockmgrtest.Open(t, b, lockmgrtest.TTL)
}

// endpoint is the etcd server of this test binary.
var endpoint string

func TestMain(m *testing.M) { os.Exit(serve(m)) }

func serve(m *testing.M) int {
	var err error
	var stop func()
	if endpoint, stop, err = startEtcd(false); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer stop()
	return m.Run()
}

// startEtcd starts a server on a unix socket, which writes to the disk if sync. prepare may fill its
// directory.
func startEtcd(sync bool, prepare ...func(*embed.Config) error) (endpoint string, stop func(), err error) {
	dir, err := os.MkdirTemp("/tmp", "etcdlock") // short: a socket's path has 108 bytes
	if err != nil {
		return "", nil, err
	}
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "c")}
	peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "p")}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "data")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.UnsafeNoFsync = !sync
	cfg.BcryptCost = 4 // the least: with the race detector a login would take seconds
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	for _, f := range prepare {
		if err := f(cfg); err != nil {
			os.RemoveAll(dir)
			return "", nil, err
		}
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		os.RemoveAll(dir)
		return "", nil, err
	}
	<-server.Server.ReadyNotify()
	return client.String(), func() {
		server.Close()
		os.RemoveAll(dir)
	}, nil
}

// newEtcd starts a server that ends with the test.
func newEtcd(t *testing.T) (endpoint string) {
	t.Helper()
	endpoint, stop, err := startEtcd(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return endpoint
}

// volumes makes each test's volume its own.
var volumes atomic.Int64

func endpointPath() string { return strings.TrimPrefix(endpoint, "unix://") }

func newName() string { return fmt.Sprintf("v%d", volumes.Add(1)) }

// dial returns a client of its own, for tests that break or wrap it.
func dial(t *testing.T) *clientv3.Client {
	t.Helper()
	return dialAt(t, endpoint)
}

func dialAt(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client, err := etcdlock.Dial(t.Context(), etcdlock.DialConfig{Endpoints: []string{endpoint}, DialTimeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// raw is a volume as etcd sees it.
type raw struct {
	*clientv3.Client
	name string
}

func (r raw) line(path string) string { return "/locks/test/" + r.name + "/" + path + "//" }
func (r raw) file(path string) string { return r.line(path) + "w/" }
func (r raw) reader(path string) string {
	return "/locks/test/" + r.name + "/" + path + "//r/"
}
func (r raw) dir(path string) string  { return "/lockfs/test/" + r.name + "/tree/" + path + "//w/" }
func (r raw) admin(key string) string { return "/lockfs/test/" + r.name + "/" + key }

// newVolume returns the backend of a new volume, and the raw view of it through
// a client of its own.
func newVolume(t *testing.T, client *clientv3.Client) (*etcdlock.Backend, raw) {
	t.Helper()
	name := newName()
	return newBackend(t, client, name), raw{dial(t), name}
}

// newBackend returns a backend that doubts no request for being slow, unless told to.
func newBackend(t *testing.T, client *clientv3.Client, name string, configure ...func(*etcdlock.Config)) *etcdlock.Backend {
	t.Helper()
	cfg := etcdlock.Config{
		Client: client, Namespace: "test", Name: name,
		RequestTimeout: patience, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, f := range configure {
		f(&cfg)
	}
	b, err := etcdlock.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// hasty is a backend with a short RequestTimeout. On a slow machine it may give up a request that is
// carried out: then the session is opened again.
type hasty struct {
	*etcdlock.Backend
	timeout time.Duration
}

func (b hasty) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	for {
		began := time.Now()
		s, err := b.Backend.OpenSession(ctx, info, ttl)
		if !errors.Is(err, lockmgr.ErrUnavailable) || time.Since(began) < b.timeout || ctx.Err() != nil {
			return s, err
		}
	}
}

func entries(t *testing.T, b lockmgr.Backend) []lockmgr.Entry {
	t.Helper()
	list, err := b.Entries(within(t, patience), "")
	if err != nil {
		t.Fatal(err)
	}
	return list
}
