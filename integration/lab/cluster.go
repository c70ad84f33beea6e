package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// memberEnv makes the test binary a member of a cluster.
const memberEnv = "LOCKFS_TEST_MEMBER"

// MemberConfig is the value of memberEnv.
type MemberConfig struct {
	Name, Dir      string
	Client, Peer   url.URL
	InitialCluster string
	Quota          int64
	TokenTTL       uint // of logins, in seconds; 0 is etcd's default
}

// serveMember is etcd until its stdin ends.
func serveMember() {
	var m MemberConfig
	if err := json.Unmarshal([]byte(os.Getenv(memberEnv)), &m); err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		os.Exit(1)
	}
	wal.SegmentSizeBytes = 4 << 20
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = m.Name, m.Dir
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{m.Client}, []url.URL{m.Client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{m.Peer}, []url.URL{m.Peer}
	cfg.InitialCluster = m.InitialCluster
	cfg.TickMs, cfg.ElectionMs = 50, 500
	cfg.QuotaBackendBytes = m.Quota
	if m.TokenTTL > 0 {
		cfg.AuthTokenTTL = m.TokenTTL
	}
	cfg.BcryptCost = 4 // under the race detector a login takes a second at the default
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		fmt.Fprintln(os.Stderr, "member:", err)
		os.Exit(1)
	}
	go func() {
		fmt.Fprintln(os.Stderr, "member:", <-e.Err())
		os.Exit(1)
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

// Cluster is an etcd of three members, each a process.
type Cluster struct {
	T       *testing.T
	Members []*member
	Client  *clientv3.Client // the operator's
}

type member struct {
	t      *testing.T
	Config MemberConfig
	cmd    *exec.Cmd // nil while it is down
}

// NewCluster returns a cluster that serves, on loopback addresses of its own: no other program can
// take a member's port.
func NewCluster(t *testing.T, change ...func(*MemberConfig)) *Cluster {
	t.Helper()
	notOnNetworkVolume(t)
	dir := shortDir(t, "/dev/shm") // where fsync costs nothing
	c := &Cluster{T: t}
	network := ownNetwork(t)
	var initial []string
	for i := range 3 {
		host := network + fmt.Sprint(i+1)
		m := &member{t: t, Config: MemberConfig{
			Name: fmt.Sprintf("m%d", i), Dir: filepath.Join(dir, fmt.Sprint(i)),
			Client: url.URL{Scheme: "http", Host: host + ":2379"}, Peer: url.URL{Scheme: "http", Host: host + ":2380"},
		}}
		initial = append(initial, m.Config.Name+"="+m.Config.Peer.String())
		c.Members = append(c.Members, m)
	}
	for _, m := range c.Members {
		m.Config.InitialCluster = strings.Join(initial, ",")
		for _, f := range change {
			f(&m.Config)
		}
		t.Cleanup(m.Kill)
		m.Start()
	}
	c.Client = c.Dial(clientv3.Config{})
	c.Healthy()
	return c
}

// ownNetwork returns the first three bytes of addresses that no other test has.
func ownNetwork(t *testing.T) string {
	t.Helper()
	for {
		network := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250))
		taken, err := net.Listen("tcp", network+"254:2379")
		if errors.Is(err, unix.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { taken.Close() })
		return network
	}
}

// Dial returns a client that finds a member that comes back at once.
func (c *Cluster) Dial(cfg clientv3.Config) *clientv3.Client {
	c.T.Helper()
	fast := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	// Without MinConnectTimeout an attempt must end within BaseDelay, and may leave a closed connection.
	params := grpc.ConnectParams{Backoff: fast, MinConnectTimeout: 20 * time.Second}
	cfg.Endpoints, cfg.Logger = c.urls(), zap.NewNop()
	cfg.DialOptions = []grpc.DialOption{grpc.WithConnectParams(params)}
	client, err := clientv3.New(cfg)
	if err != nil {
		c.T.Fatal(err)
	}
	c.T.Cleanup(func() { client.Close() })
	return client
}

func (c *Cluster) urls() []string {
	var urls []string
	for _, m := range c.Members {
		urls = append(urls, m.Config.Client.String())
	}
	return urls
}

func (m *member) Start() {
	m.t.Helper()
	config, err := json.Marshal(m.Config)
	if err != nil {
		m.t.Fatal(err)
	}
	m.cmd = exec.Command(os.Args[0])
	m.cmd.Env = append(os.Environ(), memberEnv+"="+string(config))
	m.cmd.Stderr = os.Stderr
	if _, err := m.cmd.StdinPipe(); err != nil { // ends with us
		m.t.Fatal(err)
	}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
}

// Kill ends the member with SIGKILL, if it runs.
func (m *member) Kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// freeze stops the member as SIGSTOP does: its connections stay.
func (m *member) freeze() { m.t.Helper(); Freeze(m.t, m.cmd.Process.Pid) }

func (m *member) thaw() { _ = m.cmd.Process.Signal(unix.SIGCONT) }

// Healthy returns when all members serve and agree on a leader.
func (c *Cluster) Healthy() {
	c.T.Helper()
	Eventually(c.T, "the cluster is healthy", func() bool {
		agreed := uint64(0)
		for _, m := range c.Members {
			s := c.status(m)
			if s == nil || s.Leader == 0 || agreed != 0 && s.Leader != agreed {
				return false
			}
			agreed = s.Leader
		}
		ctx, cancel := context.WithTimeout(c.T.Context(), answerTimeout)
		defer cancel()
		_, err := c.Client.Get(ctx, "/")
		return err == nil
	})
}

// answerTimeout is for one question to a member that is not frozen. On an overloaded machine it takes seconds.
const answerTimeout = 10 * time.Second

// status returns nil if the member does not answer.
func (c *Cluster) status(m *member) *clientv3.StatusResponse {
	ctx, cancel := context.WithTimeout(c.T.Context(), answerTimeout)
	defer cancel()
	s, err := c.Client.Status(ctx, m.Config.Client.String())
	if err != nil {
		return nil
	}
	return s
}

// Leader returns the leader, and the others.
func (c *Cluster) Leader() (leader *member, followers []*member) {
	c.T.Helper()
	Eventually(c.T, "there is one leader", func() bool {
		leader, followers = nil, nil
		for _, m := range c.Members {
			if s := c.status(m); s != nil && s.Leader == s.Header.MemberId {
				leader = m
			} else {
				followers = append(followers, m)
			}
		}
		return len(followers) == len(c.Members)-1
	})
	return leader, followers
}

// moveLeader hands the leadership to a follower.
func (c *Cluster) moveLeader() {
	c.T.Helper()
	Eventually(c.T, "the leader moves", func() bool {
		leader, followers := c.Leader()
		to := c.status(followers[0])
		if to == nil {
			return false
		}
		// Only the leader itself takes this request.
		direct, err := clientv3.New(clientv3.Config{Endpoints: []string{leader.Config.Client.String()}, Logger: zap.NewNop()})
		if err != nil {
			c.T.Fatal(err)
		}
		defer direct.Close()
		ctx, cancel := context.WithTimeout(c.T.Context(), 5*time.Second)
		defer cancel()
		_, err = direct.MoveLeader(ctx, to.Header.MemberId)
		return err == nil
	})
}

// Compact has etcd forget all revisions but the last.
func (c *Cluster) Compact() {
	c.T.Helper()
	compact(c.T, c.Client)
}

func compact(t *testing.T, etcd *clientv3.Client) {
	t.Helper()
	Answers(t, "etcd is compacted", func(ctx context.Context) error {
		now, err := etcd.Get(ctx, "/")
		if err != nil {
			return err
		}
		_, err = etcd.Compact(ctx, now.Header.Revision)
		if errors.Is(err, rpctypes.ErrCompacted) {
			return nil
		}
		return err
	})
}

func (c *Cluster) Defragment() {
	c.T.Helper()
	for _, url := range c.urls() {
		Answers(c.T, "etcd is defragmented", func(ctx context.Context) error {
			_, err := c.Client.Defragment(ctx, url)
			return err
		})
	}
}
