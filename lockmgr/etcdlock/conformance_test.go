package etcdlock_test

import (
	"strconv"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// named is a backend with the raw view of its volume.
type named struct {
	*etcdlock.Backend
	raw raw
}

func TestConformance(t *testing.T) {
	t.Parallel()
	client := dial(t)
	lockmgrtest.Conformance(t,
		func(t *testing.T) lockmgr.Backend {
			volume := raw{client, newName()}
			return named{newBackend(t, client, volume.name), volume}
		},
		lockmgrtest.Options{
			Ordered: true,
			Expire: func(t *testing.T, _ lockmgr.Backend, s lockmgr.Session) {
				revoke(t, client, s)
			},
			Remove: func(t *testing.T, b lockmgr.Backend, k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) {
				volume := b.(named).raw
				key := volume.file(k.Path) + id.String()
				switch {
				case k.Kind == lockmgr.Tree:
					key = volume.dir(k.Path) + id.String()
				case mode == lockmgr.Shared:
					key = volume.reader(k.Path) + id.String()
				}
				if resp, err := client.Delete(t.Context(), key); err != nil || resp.Deleted != 1 {
					t.Fatalf("deleting %q: %v, %v", key, resp, err)
				}
			},
		})
}

func leaseOf(t *testing.T, s lockmgr.Session) clientv3.LeaseID {
	t.Helper()
	id, err := strconv.ParseInt(s.ID(), 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clientv3.LeaseID(id)
}

func revoke(t *testing.T, client *clientv3.Client, s lockmgr.Session) {
	t.Helper()
	if _, err := client.Revoke(t.Context(), leaseOf(t, s)); err != nil {
		t.Fatal(err)
	}
}
