package integration

import (
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/internal/longtest"
)

// leases are those of a namespace in an API server.
type leases struct {
	t      *testing.T
	server *kubetest.Server
	setup  setup
	client *clientv3.Client // of the API server's own etcd
}

func (s setup) newLeases(t *testing.T) *leases {
	t.Helper()
	if !s.server.Own() {
		t.Skip("the API server is not the tests' own: it is not theirs to kill, nor its history to read")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.server.Store}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &leases{t, s.server.Server, s, client}
}

// beside starts another API server on the same etcd.
func (l *leases) beside() *leases {
	l.t.Helper()
	other, err := l.server.Beside()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(other.Kill)
	return &leases{l.t, other, l.setup, l.client}
}

func (l *leases) healthy() {
	l.t.Helper()
	if err := l.server.Ready(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leases) stop() (back func()) {
	l.server.Kill()
	return l.restart
}

func (l *leases) restart() {
	l.t.Helper()
	if err := l.server.Restart(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leases) startStore() {
	l.t.Helper()
	if err := l.server.StartStore(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leases) outages() map[string]func(func(string)) {
	return map[string]func(func(string)){
		"API server killed": func(func(string)) { l.stop()() },
		"its etcd killed": func(func(string)) {
			l.server.KillStore()
			between(100*time.Millisecond, 2*time.Second)
			l.startStore()
			l.healthy()
		},
		"both killed": func(func(string)) {
			back := l.stop()
			l.server.KillStore()
			l.startStore()
			back()
		},
		"API server paused": func(func(string)) {
			l.signal(syscall.SIGSTOP)
			defer l.signal(syscall.SIGCONT)
			between(time.Second, 3*time.Second)
		},
		"compacted": func(goesOn func(string)) {
			for range 3 {
				now, err := l.client.Get(l.t.Context(), "/")
				if err == nil {
					_, err = l.client.Compact(l.t.Context(), now.Header.Revision)
				}
				if err != nil {
					l.t.Fatal(err)
				}
				goesOn("compacted")
			}
		},
	}
}

func (l *leases) signal(sig syscall.Signal) {
	l.t.Helper()
	if err := l.server.Signal(sig); err != nil {
		l.t.Fatal(err)
	}
}

func (l *leases) env() []string { return l.setup.env() }

func (l *leases) addresses() []string {
	return []string{strings.TrimPrefix(l.server.Config.Host, "https://")}
}

func (l *leases) flag(addresses []string) string {
	l.t.Helper()
	conf, err := clientcmd.LoadFromFile(l.setup.server.kubeconfig)
	if err != nil {
		l.t.Fatal(err)
	}
	for _, c := range conf.Clusters {
		c.Server = (&url.URL{Scheme: "https", Host: addresses[0]}).String()
	}
	file := filepath.Join(l.t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*conf, file); err != nil {
		l.t.Fatal(err)
	}
	return "--kubeconfig=" + file
}

func (l *leases) store() *clientv3.Client { return l.client }

// reader notes the entries that come into Leases, and those that go: with the
// Lease, or with that of their session, for then they count for nothing.
func (l *leases) reader(v *volume, p *past) func(*clientv3.Event) error {
	prefix := "/registry/leases/" + l.setup.space + "/"
	volume := v.namespace() + "/"
	gone := func(name string, stays func(int64, entry) bool, at int64) {
		for token, e := range p.entries[name] {
			if _, ended := p.ends[name][token]; !ended && !stays(token, e) {
				p.ends[name][token] = at
			}
		}
	}
	return func(e *clientv3.Event) error {
		if !strings.HasPrefix(string(e.Kv.Key), prefix) {
			return nil
		}
		deleted, kv := e.Type == mvccpb.DELETE, e.Kv
		if deleted {
			kv = e.PrevKv
		}
		lease, err := storedLease(kv.Value)
		if err != nil || !strings.HasPrefix(lease.Annotations["lockfs.io/volume-name"], volume) {
			return err
		}
		at := e.Kv.ModRevision
		if session := lease.Labels["lockfs.io/session"]; deleted && lease.Labels["lockfs.io/kind"] == "session" {
			for name := range p.entries {
				gone(name, func(_ int64, e entry) bool { return e.Session != session }, at)
			}
		}
		name := lease.Annotations["lockfs.io/key"]
		if p.entries[name] == nil || lease.Labels["lockfs.io/kind"] != "file" {
			return nil
		}
		stands := make(map[int64]bool)
		if !deleted {
			var entries []entry
			if err := json.Unmarshal([]byte(lease.Annotations["lockfs.io/entries"]), &entries); err != nil {
				return err
			}
			for _, e := range entries {
				if e.Token == 0 { // it is this write that put it
					e.Token = at
				}
				stands[e.Token] = true
				p.entries[name][e.Token] = e
			}
		}
		gone(name, func(token int64, _ entry) bool { return stands[token] }, at)
		return nil
	}
}

// storedLease decodes what an API server has in its etcd.
func storedLease(value []byte) (*coordinationv1.Lease, error) {
	const magic = "k8s\x00" // what follows is protobuf
	var object runtime.Unknown
	lease := &coordinationv1.Lease{}
	if err := object.Unmarshal([]byte(strings.TrimPrefix(string(value), magic))); err != nil {
		return nil, err
	}
	return lease, lease.Unmarshal(object.Raw)
}

// API servers of one etcd have a cache each, and one may be behind. Mounts are
// on either, and one moves to and fro.
func TestServersOfOneStore(t *testing.T) { over(t, testServersOfOneStore, inLeases) }

func testServersOfOneStore(t *testing.T, on setup) {
	l := on.newLeases(t)
	elsewhere := l.beside()
	tr, w := newTrial(t, l, "--wait", "-1"), newWire(t, l)
	for _, m := range []*mount{tr.mount("a"), tr.mount("b", w.flag), tr.mount("c", elsewhere.flag(elsewhere.addresses()))} {
		tr.work(m, 2)
	}
	tr.goesOn("on two servers")
	for round, end := 0, time.Now().Add(longtest.For(t)); round < 2 || time.Now().Before(end); round++ {
		w.cut()
		w.move([]*leases{elsewhere, l}[round%2].addresses())
		w.mend()
		tr.goesOn("moved to the other")
	}
	tr.finish()
	tr.spared()
}
