package etcdlock_test

import (
	"errors"
	"testing"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/lockmgr"
)

// All mounts of a volume find one id, whoever put it; another volume's are not concerned.
func TestService(t *testing.T) {
	client, kv := flawed(t)
	b, etcd := newVolume(t, client)
	for range 2 { // to look puts nothing
		if s := found(t, b); s.ID != uuid.Nil || s.Kind != lockmgr.KindEtcd || s.At != endpoint {
			t.Errorf("before anybody has asked for its id: %+v", s)
		}
	}
	kv.next(lostReply)
	s := serviceOf(t, b)
	if checked := found(t, b); checked != s {
		t.Errorf("%s, and to one who looks %s", s, checked)
	}
	if again := serviceOf(t, newBackend(t, dial(t), etcd.name)); s.Kind != lockmgr.KindEtcd || !again.Is(s) || s.At != endpoint {
		t.Errorf("%s, then %s", s, again)
	}
	other, _ := newVolume(t, dial(t))
	if serviceOf(t, other).Is(s) {
		t.Error("two volumes have one id: a user may not have the rights to both")
	}
}

// An etcd that has forgotten everything gets its id back from the mounts that live.
func TestForgottenServiceIsPutAgain(t *testing.T) {
	b, etcd := newVolume(t, dial(t))
	before := serviceOf(t, b)
	mustRecord(t, b, "record", "record")
	if _, err := etcd.Delete(t.Context(), etcd.admin(""), clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	if err := openErr(t, b); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Errorf("OpenSession = %v, want ErrUnavailable, to be tried again", err)
	}
	if err := openErr(t, b); err != nil {
		t.Error(err)
	}
	if after := serviceOf(t, newBackend(t, dial(t), etcd.name)); !after.Is(before) {
		t.Errorf("it was %s, now %s", before, after)
	}
}

// A mount whose endpoints come to lead to another etcd locks nothing there: others
// may go on using the former.
func TestEndpointsLeadElsewhere(t *testing.T) {
	t.Parallel()
	former, other := newEtcd(t), newEtcd(t)
	for name, used := range map[string]bool{"empty": false, "used by others": true} {
		t.Run(name, func(t *testing.T) {
			client, there := dialAt(t, former), dialAt(t, other)
			volume := newName()
			b := newBackend(t, client, volume)
			serviceOf(t, b)
			mustRecord(t, b, "record", "record")
			if used {
				mounted := newBackend(t, there, volume)
				serviceOf(t, mounted)
				mustRecord(t, mounted, "another record", "another record")
			}
			before, err := client.Get(t.Context(), "none")
			if err != nil {
				t.Fatal(err)
			}
			for { // so that it does not look as if it was set back
				resp, err := there.Put(t.Context(), "/filler", "")
				if err != nil {
					t.Fatal(err)
				}
				if resp.Header.Revision > before.Header.Revision {
					break
				}
			}
			client.SetEndpoints(other)
			eventually(t, "the session is refused for good", func() bool {
				return errors.Is(openErr(t, b), lockmgr.ErrVolumeChanged)
			})
			got, err := there.Get(t.Context(), "/lockfs/test/"+volume+"/", clientv3.WithPrefix())
			if err != nil {
				t.Fatal(err)
			}
			if !used && len(got.Kvs) != 0 {
				t.Errorf("it was put there: %v", got.Kvs)
			}
		})
	}
}
