package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// Entry is a line of 'lockfs ls -o json'.
type Entry struct {
	Path    string `json:"path"`
	State   string `json:"state"`
	Lock    string `json:"lock"`
	Node    string `json:"node"`
	PID     int    `json:"pid"`
	Command string `json:"command"`
	Session string `json:"session"`
	Token   int64  `json:"token"`
}

// LS returns the locks of the volume. It asks the lock service itself, if it is an embedded etcd or
// the tests' API server: tests call LS again and again, and starting 'lockfs ls' costs many times as
// much as its answer.
func (v *Volume) LS() []Entry {
	v.T.Helper()
	if !v.embedded() && v.space == "" {
		return v.LSOf(v.Source)
	}
	ctx, cancel := context.WithTimeout(context.Background(), CallTimeout)
	defer cancel()
	var es []Entry
	Eventually(v.T, "the locks are listed", func() (done bool) {
		var err error
		es, err = v.list(ctx)
		if err != nil && !errors.Is(err, lockmgr.ErrUnavailable) { // the etcd may be on its way to another mount
			v.T.Fatal("listing the locks: ", err)
		}
		return err == nil
	})
	return es
}

// AwaitLocked returns when these paths, and no others, are locked. The lock of a file is given up a
// while after close has returned.
func (v *Volume) AwaitLocked(paths ...string) {
	v.T.Helper()
	slices.Sort(paths)
	Eventually(v.T, fmt.Sprintf("%q and no others are locked", paths), func() bool {
		var locked []string
		for _, e := range v.LS() {
			locked = append(locked, e.Path)
		}
		slices.Sort(locked)
		return slices.Equal(locked, paths)
	})
}

// AwaitTakeover returns when the embedded etcd, if the volume has one, answers. After the end of the
// daemon that served it, it is on its way to another.
func (v *Volume) AwaitTakeover() {
	v.T.Helper()
	if v.embedded() {
		v.LS()
	}
}

// lister is a lock service that can be asked for its locks.
type lister interface {
	Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error)
	AdvisoryRows(ctx context.Context, tables ...lockmgr.Key) (lockmgr.AdvisoryRows, error)
}

func (v *Volume) list(ctx context.Context) ([]Entry, error) {
	service, done, err := v.service(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	entries, err := service.Entries(ctx, "")
	if err != nil {
		return nil, err
	}
	rows, err := service.AdvisoryRows(ctx)
	if err != nil {
		return nil, err
	}
	advisory, err := rows.Entries()
	if err != nil {
		return nil, err
	}
	var es []Entry
	for _, e := range append(entries, advisory...) {
		es = append(es, newEntry(e))
	}
	return es, nil
}

// service returns the volume's lock service. The caller calls done.
func (v *Volume) service(ctx context.Context) (l lister, done func(), err error) {
	namespace, name, err := volume.NameOf(v.Source)
	if err != nil {
		return nil, nil, err
	}
	if v.space != "" {
		l, err := v.leasesOf(namespace, name)
		return l, func() {}, err
	}
	client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{Endpoints: []string{v.endpoint()}, DialTimeout: CallTimeout})
	if err != nil {
		return nil, nil, err
	}
	b, err := etcdlock.New(etcdlock.Config{Client: client, Namespace: namespace, Name: name})
	if err != nil {
		client.Close()
		return nil, nil, err
	}
	return b, func() { b.Close(); client.Close() }, nil
}

// leasesOf connects once.
func (v *Volume) leasesOf(namespace, name string) (lister, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.leases != nil {
		return v.leases, nil
	}
	client, err := kubelease.Dial(kubelease.DialConfig{Kubeconfig: v.kubeconfig, QPS: 1000, Burst: 1000})
	if err != nil {
		return nil, err
	}
	b, err := kubelease.New(kubelease.Config{Client: client, Namespace: namespace, Name: name, LeaseNamespace: v.space})
	if err != nil {
		return nil, err
	}
	v.T.Cleanup(b.Close)
	v.leases = b
	return b, nil
}

func newEntry(e lockmgr.Entry) Entry {
	h := e.Holder
	id := h.AcquisitionID.String()
	if e.Range != nil {
		id = ""
	}
	return Entry{Path: e.Key.Path, State: e.State(), Lock: id, Node: h.Node, PID: h.PID, Command: h.Comm, Session: h.Session, Token: e.FencingToken()}
}

// LSOf returns what 'lockfs ls' says with these arguments.
func (v *Volume) LSOf(args ...string) []Entry {
	v.T.Helper()
	var status int
	var stdout, stderr string
	Eventually(v.T, "the lock service answers in time", func() bool {
		status, stdout, stderr = Outcome(v.T, v.Command(append([]string{"ls", "-o", "json"}, args...)...))
		return status == 0 || !strings.Contains(stderr, "context deadline exceeded")
	})
	var es []Entry
	if err := json.Unmarshal([]byte(stdout), &es); status != 0 || err != nil {
		v.T.Fatalf("lockfs ls: exit status %d, %v: %s%s", status, err, stdout, stderr)
	}
	return es
}

// embedded reports whether the volume has an embedded etcd.
func (v *Volume) embedded() bool {
	found, _ := filepath.Glob(filepath.Join(v.State, "embedded", "*", "lock"))
	return found != nil
}

// endpoint is where the embedded etcd serves, or will when another mount has taken it over.
func (v *Volume) endpoint() string {
	v.T.Helper()
	return "unix://" + filepath.Join(filepath.Dir(v.StateFile("lock")), "client.sock")
}
