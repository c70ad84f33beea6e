package etcdlock_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// meter counts what an operation costs: Txns sent, and revisions made of them.
type meter struct {
	t    *testing.T
	etcd raw
	kv   *flawedKV
}

func (m meter) costs(what string, txns, commits int64, op func()) {
	m.t.Helper()
	sent, rev := m.kv.sent.Load(), m.revision()
	op()
	if got := m.kv.sent.Load() - sent; got != txns {
		m.t.Errorf("%s: %d Txns, want %d", what, got, txns)
	}
	if got := m.revision() - rev; got != commits {
		m.t.Errorf("%s: %d revisions, want %d", what, got, commits)
	}
}

func (m meter) revision() int64 {
	resp, err := m.etcd.Get(m.t.Context(), "none")
	if err != nil {
		m.t.Fatal(err)
	}
	return resp.Header.Revision
}

// Uncontended, every way to acquire costs one Txn and one commit, also when
// another mount has taken a directory elsewhere meanwhile.
func TestCommits(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	m := meter{t, etcd, kv}
	var g []lockmgr.Grant
	free := func() { release(t, s, g...) }
	elsewhere := func() { release(t, other, must(t, other, lockmgr.Retry, tree("elsewhere"))...) }

	for name, wait := range waits {
		m.costs(name, 1, 1, func() { g = must(t, s, wait, file("d/f")) })
		m.costs("Release", 1, 1, free)
		m.costs(name+" for two", 1, 1, func() { g = must(t, s, wait, file("d/f"), file("d/g")) })
		m.costs("two Releases", 2, 2, free)
		elsewhere()
		m.costs(name+" after a directory elsewhere", 1, 1, func() { g = must(t, s, wait, file("d/f")) })
		free()
		theirs := acquire(t, other, shared(wait, file("d/f")))
		m.costs(name+", shared", 1, 1, func() { g = acquire(t, s, shared(wait, file("d/f"))) })
		release(t, other, theirs...)
		up := request(wait, file("d/f"))
		up.Upgrades = g
		m.costs(name+", upgrading", 1, 1, func() { g = append(g, acquire(t, s, up)...) })
		free()
	}
	m.costs("a directory", 1, 1, func() { g = must(t, s, lockmgr.Retry, tree("d")) })
	free()
	m.costs("a file elsewhere after our own directory", 1, 1, func() { g = must(t, s, lockmgr.NoWait, file("x")) })
	free()
	m.costs("a file where our own directory was", 1, 1, func() { g = must(t, s, lockmgr.NoWait, file("d/f")) })
	m.costs("try-lock of what is held", 1, 0, func() {
		if _, err := s.Acquire(t.Context(), request(lockmgr.NoWait, file("d/f"))); err == nil {
			t.Error("granted twice")
		}
	})
	free()
}

// What another mount has delegated is asked for once more when it is gone, and not meanwhile.
// What the mount itself has delegated costs nothing more.
func TestCommitsAtADelegation(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	there := newBackend(t, dial(t), etcd.name)
	s, other := open(t, b), open(t, there)
	m := meter{t, etcd, kv}
	var g []lockmgr.Grant
	var d lockmgr.Grant
	delegated := func(s lockmgr.Session) func() { return func() { d = delegate(t, s, "d") } }
	m.costs("a delegation", 1, 1, delegated(s))
	for name, wait := range waits {
		m.costs(name+" below", 1, 1, func() { g = must(t, s, wait, file("d/e/f")) })
		m.costs("its release", 1, 1, func() { release(t, s, g...) })
	}
	m.costs("its end", 1, 1, func() { release(t, s, d) })
	g = must(t, s, lockmgr.NoWait, file("d/f"))
	m.costs("a delegation with a file open below", 1, 1, delegated(s))
	release(t, s, append(g, d)...)
	for range 70 { // more than a Txn compares one by one
		delegated(s)()
		release(t, s, d)
	}
	elsewhere := must(t, other, lockmgr.NoWait, tree("elsewhere"))
	m.costs("a file where many delegations were", 1, 1, func() { g = must(t, s, lockmgr.NoWait, file("d/f")) })
	release(t, other, elsewhere...)
	release(t, s, g...)

	delegated(other)()
	waiting := make(chan struct{})
	req := request(lockmgr.Queue, file("d/f"))
	req.Waits = func() { close(waiting) }
	// The request, its recall, and the request again; and the end of what it waits for, and of the
	// recall.
	m.costs("a request that waits", 3, 4, func() {
		answer := start(within(t, patience), s, req)
		<-waiting
		eventually(t, "it is recalled", func() bool {
			recalls, err := there.Recalls(t.Context())
			return err == nil && len(recalls) > 0
		})
		release(t, other, d)
		g = await(t, answer).Grants
		eventually(t, "no recall stands", func() bool {
			recalls, err := there.Recalls(t.Context())
			return err == nil && len(recalls) == 0
		})
	})
	release(t, s, g...)
}

// A directory entry of another mount is seen, and one that is gone does not stand in the way.
func TestDirectoryOfAnotherMount(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s, other := open(t, b), open(t, newBackend(t, dial(t), etcd.name))
	for range 3 {
		release(t, s, must(t, s, lockmgr.NoWait, file("d/f"))...)
		dir := must(t, other, lockmgr.NoWait, tree("d"))
		for _, k := range []lockmgr.Key{file("d/f"), file("d"), tree("d/e"), tree("d")} {
			if g, err := s.Acquire(t.Context(), request(lockmgr.NoWait, k)); err == nil {
				t.Fatalf("granted under a directory: %v", g)
			}
		}
		release(t, s, must(t, s, lockmgr.NoWait, file("e"))...)
		release(t, other, dir...)
	}
}

// The layout is what docs and etcdctl users rely on.
func TestLayout(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	s := open(t, b)
	f, d := must(t, s, lockmgr.Queue, file("a/b"))[0], must(t, s, lockmgr.Retry, tree("d"))[0]
	for _, key := range []string{
		etcd.file("a/b") + f.AcquisitionID.String(), etcd.dir("d") + d.AcquisitionID.String(), etcd.admin("session/" + s.ID()),
	} {
		resp, err := etcd.Get(t.Context(), key)
		if err != nil || len(resp.Kvs) != 1 || resp.Kvs[0].Lease != int64(leaseOf(t, s)) {
			t.Errorf("%s: %v, %v", key, resp, err)
		}
	}
}

// The largest requests fit into a Txn with etcd's default limit, in each way to
// ask for it; one key more is refused before it is sent.
func TestMaxKeys(t *testing.T) {
	b, _ := newVolume(t, dial(t))
	s := open(t, b)
	var keys []lockmgr.Key
	for i := range 60 {
		keys = append(keys, file(fmt.Sprintf("f%d", i)))
	}
	for _, wait := range waits {
		release(t, s, must(t, s, wait, keys...)...)
	}
	mixed := append([]lockmgr.Key{tree("d")}, keys[1:]...)
	release(t, s, must(t, s, lockmgr.Retry, mixed...)...)
	if _, err := s.Acquire(t.Context(), request(lockmgr.NoWait, append(keys, file("more"))...)); !errors.Is(err, lockmgr.ErrInvalidKey) {
		t.Error(err)
	}
	for _, wait := range waits {
		readers := acquire(t, s, shared(wait, keys[:40]...))
		up := request(wait, keys[:40]...)
		up.Upgrades = readers
		release(t, s, append(readers, acquire(t, s, up)...)...)
	}
	if _, err := s.Acquire(t.Context(), shared(lockmgr.NoWait, keys[:41]...)); !errors.Is(err, lockmgr.ErrInvalidKey) {
		t.Error(err)
	}
}
