package lab

import (
	"cmp"
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
)

// Leases are those of a namespace in an API server.
type Leases struct {
	t      *testing.T
	server *kubetest.Server
	setup  Setup
	client *clientv3.Client // of the API server's own etcd
}

func (s Setup) NewLeases(t *testing.T) *Leases {
	t.Helper()
	if !s.Server.Own() {
		t.Skip("the API server is not the tests' own: it is not theirs to kill, nor its history to read")
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Server.Store}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &Leases{t, s.Server.Server, s, client}
}

// Beside starts another API server on the same etcd.
func (l *Leases) Beside() *Leases {
	l.t.Helper()
	other, err := l.server.Beside()
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(other.Kill)
	return &Leases{l.t, other, l.setup, l.client}
}

func (l *Leases) Healthy() {
	l.t.Helper()
	if err := l.server.Ready(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Leases) Stop() (back func()) {
	l.server.Kill()
	return l.restart
}

func (l *Leases) restart() {
	l.t.Helper()
	if err := l.server.Restart(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Leases) startStore() {
	l.t.Helper()
	if err := l.server.StartStore(); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Leases) Outages() map[string]func(func(string)) {
	return map[string]func(func(string)){
		"API server killed": func(func(string)) { l.Stop()() },
		"its etcd killed": func(func(string)) {
			l.server.KillStore()
			Between(100*time.Millisecond, 2*time.Second)
			l.startStore()
			l.Healthy()
		},
		"both killed": func(func(string)) {
			back := l.Stop()
			l.server.KillStore()
			l.startStore()
			back()
		},
		"API server paused": func(func(string)) {
			l.signal(syscall.SIGSTOP)
			defer l.signal(syscall.SIGCONT)
			Between(time.Second, 3*time.Second)
		},
		"compacted": func(goesOn func(string)) {
			for range 3 {
				compact(l.t, l.client)
				goesOn("compacted")
			}
		},
	}
}

func (l *Leases) signal(sig syscall.Signal) {
	l.t.Helper()
	if err := l.server.Signal(sig); err != nil {
		l.t.Fatal(err)
	}
}

func (l *Leases) Env() []string { return l.setup.env() }

func (l *Leases) Addresses() []string {
	return []string{strings.TrimPrefix(l.server.Config.Host, "https://")}
}

func (l *Leases) Flag(addresses []string) string {
	l.t.Helper()
	conf, err := clientcmd.LoadFromFile(l.setup.Server.KubeconfigFile)
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

func (l *Leases) Store() *clientv3.Client { return l.client }

// Reader notes the entries that come into Leases, and those that end, with the Lease or their
// session.
func (l *Leases) Reader(v *Volume, p *Past) func(*clientv3.Event) error {
	prefix := "/registry/leases/" + l.setup.Space + "/"
	volume := v.Namespace() + "/"
	gone := func(name string, stays func(int64, Entry) bool, at int64) {
		for token, e := range p.Entries[name] {
			if _, ended := p.Ends[name][token]; !ended && !stays(token, e) {
				p.Ends[name][token] = at
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
			for name := range p.Entries {
				gone(name, func(_ int64, e Entry) bool { return e.Session != session }, at)
			}
			p.undelegated(func(_ int64, d Delegation) bool { return d.session != session }, at)
		}
		if lease.Labels["lockfs.io/kind"] == "tree" {
			return p.noteDirectories(lease, deleted, at)
		}
		name := lease.Annotations["lockfs.io/key"]
		if p.Entries[name] == nil || lease.Labels["lockfs.io/kind"] != "file" {
			return nil
		}
		stands := make(map[int64]bool)
		if !deleted {
			var entries []Entry
			if err := json.Unmarshal([]byte(lease.Annotations["lockfs.io/entries"]), &entries); err != nil {
				return err
			}
			for _, e := range entries {
				if e.Token == 0 { // it is this write that put it
					e.Token = at
				}
				stands[e.Token] = true
				if _, known := p.Entries[name][e.Token]; !known { // a kept entry tells of later owners as well
					p.Entries[name][e.Token] = e
				}
			}
		}
		gone(name, func(token int64, _ Entry) bool { return stands[token] }, at)
		return nil
	}
}

// noteDirectories takes in the Lease of the directories.
func (p *Past) noteDirectories(lease *coordinationv1.Lease, deleted bool, at int64) error {
	p.PutLate = true
	var entries []struct {
		Entry
		Dir  string `json:"dir"`
		Mode string `json:"mode"`
	}
	if !deleted {
		if err := json.Unmarshal([]byte(lease.Annotations["lockfs.io/entries"]), &entries); err != nil {
			return err
		}
	}
	stands := make(map[int64]bool)
	for _, e := range entries {
		if e.Mode != "k" {
			continue
		}
		token := cmp.Or(e.Token, at)
		stands[token] = true
		if _, known := p.Delegations[token]; !known {
			p.Delegations[token] = Delegation{Path: e.Dir, Node: e.Node, begin: token, session: e.Session}
		}
	}
	p.undelegated(func(token int64, _ Delegation) bool { return stands[token] }, at)
	return nil
}

// undelegated notes the end of the delegations that do not stay.
func (p *Past) undelegated(stays func(int64, Delegation) bool, at int64) {
	for token, d := range p.Delegations {
		if d.end == 0 && !stays(token, d) {
			d.end = at
			p.Delegations[token] = d
		}
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
