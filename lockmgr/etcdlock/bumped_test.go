package etcdlock_test

import (
	"errors"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// restored starts a server from a snapshot, which counts on from a later revision.
func restored(file string) (endpoint string, stop func(), err error) {
	return startEtcd(false, func(cfg *embed.Config) error {
		return snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
			SnapshotPath: file, Name: cfg.Name, OutputDataDir: cfg.Dir, RevisionBump: 1_000_000_000, MarkCompacted: true,
			PeerURLs: []string{cfg.AdvertisePeerUrls[0].String()}, InitialCluster: cfg.InitialCluster, InitialClusterToken: cfg.InitialClusterToken,
		})
	})
}

// A session whose fence was raised after the snapshot notices that etcd was restored, though the
// revision is a later one: it could put nothing there any more.
func TestRestoredBehindTheFence(t *testing.T) {
	t.Parallel()
	former, stop, err := startEtcd(false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop() }) // after the sessions are closed

	type mount struct {
		client *clientv3.Client
		b      *etcdlock.Backend
		lockmgr.Session
	}
	table := inode(t, 7)
	var below lockmgr.Grant
	asks := map[string]func(lockmgr.Session) error{
		"a lock": func(s lockmgr.Session) error {
			_, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("f")))
			return err
		},
		"in line": func(s lockmgr.Session) error {
			_, err := s.Acquire(within(t, patience), request(lockmgr.Queue, file("f")))
			return err
		},
		"flocks": func(s lockmgr.Session) error {
			_, _, err := s.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), rows(table, "a"))
			return err
		},
		"below": func(s lockmgr.Session) error {
			e := lockmgr.Entry{Key: file("d/f"), Holder: lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID()}}
			_, err := s.(lockmgr.Delegator).PutBelow(within(t, patience), below, []lockmgr.Entry{e})
			return err
		},
	}
	mounts := make(map[string]mount)
	for name := range asks {
		client := dialAt(t, former)
		b := newBackend(t, client, newName())
		mounts[name] = mount{client, b, open(t, b)}
	}
	below = delegate(t, mounts["below"], "d")
	saved := filepath.Join(t.TempDir(), "snapshot")
	if _, err := snapshot.NewV3(zap.NewNop()).Save(within(t, patience), clientv3.Config{Endpoints: []string{former}, Logger: zap.NewNop()}, saved); err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		if _, _, err := m.Session.(lockmgr.AdvisorySession).PutAdvisory(within(t, patience), lockmgr.AdvisoryPut{Table: table, Void: true}); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	stop = func() {}
	now, end, err := restored(saved)
	if err != nil {
		t.Fatal(err)
	}
	stop = end
	for _, m := range mounts {
		m.client.SetEndpoints(now)
	}
	for name, m := range mounts {
		t.Run(name, func(t *testing.T) {
			eventually(t, "the session is lost", func() bool { return errors.Is(asks[name](m.Session), lockmgr.ErrSessionLost) })
			must(t, open(t, m.b), lockmgr.NoWait, file("f"))
		})
	}
}
