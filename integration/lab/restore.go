package lab

import (
	"os"
	"testing"

	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// unpack restores a member's data as 'etcdutl snapshot restore' does; bump: as
// docs/how-to/restore.md.
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

func (c *Cluster) Restore(file string, bump bool) {
	c.T.Helper()
	for _, m := range c.Members {
		m.Kill()
		if err := os.RemoveAll(m.Config.Dir); err != nil {
			c.T.Fatal(err)
		}
		if file != "" {
			unpack(c.T, file, bump, snapshot.RestoreConfig{
				Name: m.Config.Name, OutputDataDir: m.Config.Dir,
				PeerURLs: []string{m.Config.Peer.String()}, InitialCluster: m.Config.InitialCluster, InitialClusterToken: "etcd-cluster",
			})
		}
	}
	for _, m := range c.Members {
		m.Start()
	}
	c.Healthy()
}

func (l *Leases) Restore(file string, bump bool) {
	l.t.Helper()
	if file == "" {
		l.t.Skip("without anything in its etcd the API server has no namespace for the Leases")
	}
	back := l.Stop()
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
