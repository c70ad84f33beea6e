package integration

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// save writes a snapshot of an etcd, as 'etcdctl snapshot save' does.
func save(t *testing.T, etcd *clientv3.Client) (file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	file = filepath.Join(t.TempDir(), "snapshot")
	one := clientv3.Config{Endpoints: etcd.Endpoints()[:1], Logger: zap.NewNop()}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, one, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// unpack makes a member's data of a snapshot, as 'etcdutl snapshot restore' does.
// With bump, it is as docs/how-to/restore.md has it.
func unpack(t *testing.T, file string, bump bool, m snapshot.RestoreConfig) {
	t.Helper()
	m.SnapshotPath = file
	if bump {
		m.RevisionBump, m.MarkCompacted = 1_000_000_000, true
	}
	if err := snapshot.NewV3(zap.NewNop()).Restore(m); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) restore(file string, bump bool) {
	c.t.Helper()
	for _, m := range c.members {
		m.kill()
		if err := os.RemoveAll(m.config.Dir); err != nil {
			c.t.Fatal(err)
		}
		if file != "" {
			unpack(c.t, file, bump, snapshot.RestoreConfig{
				Name: m.config.Name, OutputDataDir: m.config.Dir,
				PeerURLs: []string{m.config.Peer.String()}, InitialCluster: m.config.InitialCluster, InitialClusterToken: "etcd-cluster",
			})
		}
	}
	for _, m := range c.members {
		m.start()
	}
	c.healthy()
}

func (l *leases) restore(file string, bump bool) {
	l.t.Helper()
	if file == "" {
		l.t.Skip("without anything in its etcd the API server has no namespace for the Leases")
	}
	back := l.stop()
	l.server.KillStore()
	if err := os.RemoveAll(l.server.StoreDir()); err != nil {
		l.t.Fatal(err)
	}
	const peer = "http://localhost:2380" // of a member that is alone
	unpack(l.t, file, bump, snapshot.RestoreConfig{
		Name: "default", OutputDataDir: l.server.StoreDir(),
		PeerURLs: []string{peer}, InitialCluster: "default=" + peer, InitialClusterToken: "etcd-cluster",
	})
	l.startStore()
	back()
}

// ages brings etcd's revision to where a restored one does not get in a test.
func ages(t *testing.T, etcd *clientv3.Client) {
	t.Helper()
	for range 300 {
		if _, err := etcd.Put(t.Context(), "/filler", ""); err != nil {
			t.Fatal(err)
		}
	}
}

// What docs/how-to/restore.md says: with every mount stopped, etcd made
// from a snapshot and the locks of the dead deleted, locks are free at once, and
// fencing tokens go on growing.
func TestRestore(t *testing.T) {
	c := newCluster(t)
	tr := newTrial(t, c)
	a := tr.mount("a")
	p := newAgent(t)
	p.open(a.path("dead"), wronly|create) // of the snapshot, and then of nobody
	file := save(t, c.client)
	p.open(a.path("later"), wronly|create)
	ages(t, c.client)
	last := p.open(a.path("token"), wronly|create)
	before := p.token(last)
	a.stop()

	c.restore(file, true)
	if _, err := c.client.Delete(t.Context(), "/locks/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	b := tr.mount("b")
	q := newAgent(t)
	for _, name := range []string{"dead", "later"} {
		q.must(call{Op: "close", FD: q.open(b.path(name), wronly|nonblock)})
	}
	if after := q.token(q.open(b.path("token"), wronly)); after <= before {
		t.Errorf("a token of %d after one of %d", after, before)
	}
}

// token is the fencing token of the lock that an open file has.
func (a *agent) token(fd int) int64 {
	a.t.Helper()
	buf := make([]byte, 64)
	n, err := unix.Getxattr("/proc/"+strconv.Itoa(a.pid())+"/fd/"+strconv.Itoa(fd), "user.lockfs.token", buf)
	if err != nil {
		a.t.Fatal(err)
	}
	token, err := strconv.ParseInt(string(buf[:n]), 10, 64)
	if err != nil {
		a.t.Fatal(err)
	}
	return token
}

// A mount that was not stopped loses what the restored etcd does not know, for
// ever, and is as good as a new one then.
func TestRestoreUnderMounts(t *testing.T) { over(t, testRestoreUnderMounts, local, inLeases) }

func testRestoreUnderMounts(t *testing.T, on setup) {
	for name, of := range map[string]struct {
		empty bool
		bump  bool
	}{
		"as it was": {},
		"bumped":    {bump: true},
		"empty":     {empty: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := on.newService(t)
			tr := newTrial(t, c, "--wait", "-1", "--name-wait", "10s")
			a, b := tr.mount("a"), tr.mount("b")
			file := ""
			if !of.empty {
				file = save(t, c.store())
			}
			p, q := newAgent(t), newAgent(t)
			held := p.open(a.path("f"), wronly|create)
			q.must(call{Op: "mkdir", Path: b.path("d")})
			ages(t, c.store())
			q.must(call{Op: "rename", Path: b.path("d"), Path2: b.path("e")}) // b knows the directory entries as of then

			c.restore(file, of.bump)
			eventually(t, "a has lost its lock", func() bool {
				return p.do(call{Op: "write", FD: held, Data: "x"}).Errno == unix.EIO
			})
			other := q.open(b.path("f"), wronly)
			q.must(call{Op: "write", FD: other, Data: "y"})
			p.fails(call{Op: "write", FD: held, Data: "x"}, unix.EIO)
			q.must(call{Op: "close", FD: other})

			// Directory entries are those of the etcd that is there now.
			p.must(call{Op: "rename", Path: a.path("e"), Path2: a.path("d")})
			q.must(call{Op: "rename", Path: b.path("f"), Path2: b.path("g")})
			again := p.open(a.path("h"), wronly|create)
			p.must(call{Op: "write", FD: again, Data: "z"})
			p.must(call{Op: "close", FD: again})
		})
	}
}
