package kubelease

import (
	"strconv"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
)

// An etcd that was set back counts on from an earlier revision. Whatever was asked
// of it before, and is answered after that was seen, tells nothing.
func TestAnswersOfAnotherEra(t *testing.T) {
	m := newMirror(newLayout("ns", "name"), boottime.System{})
	key, err := lockmgr.FileKey("f")
	if err != nil {
		t.Fatal(err)
	}
	at := func(rev int64) *coordinationv1.Lease {
		lease, err := m.names.lockLease(nil, key, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		lease.Name, lease.ResourceVersion = m.names.lock(key), strconv.FormatInt(rev, 10)
		return lease
	}
	_, before := m.newest()
	if _, err := m.wrote(before, at(900)); err != nil {
		t.Fatal(err)
	}
	if rev, _ := m.newest(); rev != 900 {
		t.Fatalf("the newest revision is %d", rev)
	}

	now, ended := m.setBack(before)
	if !ended || before.Err() == nil || now.Err() != nil {
		t.Fatalf("ended: %v; of the eras, the one of before: %v, the one of now: %v", ended, before.Err(), now.Err())
	}
	if same, ended := m.setBack(before); ended || same != now {
		t.Error("who sees it as well ends the era of now")
	}
	for what, late := range map[string]func() error{
		"answer": func() error { _, err := m.learn(before, at(901)); return err },
		"write":  func() error { _, err := m.wrote(before, at(902)); return err },
		"event":  func() error { return m.changed(before, at(903), false) },
		"list":   func() error { return m.replace(reading{[]coordinationv1.Lease{*at(904)}, 904, before}) },
		"mark":   func() error { m.passed(before, 905); return nil },
	} {
		if err := late(); err != nil {
			t.Fatal(err)
		}
		if rev, _ := m.newest(); rev != 0 || len(m.objects) > 0 {
			t.Errorf("after a late %s: revision %d, %d Leases", what, rev, len(m.objects))
		}
	}

	if err := m.replace(reading{[]coordinationv1.Lease{*at(500)}, 501, now}); err != nil {
		t.Fatal(err)
	}
	if o := m.at(m.names.lock(key)); o == nil || o.rev != 500 {
		t.Errorf("the mirror has %+v", o)
	}
}
