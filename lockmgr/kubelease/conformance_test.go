package kubelease_test

import (
	"encoding/json"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

// The suite, with the sessions on one mount and on several.
func TestConformance(t *testing.T) {
	longtest.Only(t)
	t.Parallel()
	conformance(t, func(t *testing.T) lockmgr.Backend { return newBackend(t, newName()) })
}

func TestConformanceOfMounts(t *testing.T) {
	t.Parallel()
	conformance(t, func(t *testing.T) lockmgr.Backend { return newApart(t) })
}

func conformance(t *testing.T, newBackend func(t *testing.T) lockmgr.Backend) {
	lockmgrtest.Conformance(t, newBackend, lockmgrtest.Options{
		Ordered:  true,
		OneByOne: true,
		Expire:   func(t *testing.T, _ lockmgr.Backend, s lockmgr.Session) { expire(t, s) },
		Remove: func(t *testing.T, b lockmgr.Backend, k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) {
			removeEntry(t, b, k, mode, id)
			for _, m := range mountsOf(b) { // no release is sent for what they know to be gone
				if err := m.AwaitGone(within(t, patience), lockmgr.Grant{Key: k, Mode: mode, AcquisitionID: id}); err != nil {
					t.Fatal(err)
				}
			}
		},
	})
}

// removeEntry takes an entry out of its Lease as an operator might.
func removeEntry(t *testing.T, _ lockmgr.Backend, _ lockmgr.Key, _ lockmgr.Mode, id lockmgr.AcquisitionID) {
	t.Helper()
	leases := raw(t)
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list.Items {
		var entries []map[string]any
		_ = json.Unmarshal([]byte(l.Annotations["lockfs.io/entries"]), &entries)
		rest := slices.DeleteFunc(slices.Clone(entries), func(e map[string]any) bool { return e["lock"] == id.String() })
		if len(rest) == len(entries) {
			continue
		}
		text, err := json.Marshal(rest)
		if err != nil {
			t.Fatal(err)
		}
		l.Annotations["lockfs.io/entries"] = string(text)
		if _, err := leases.Update(t.Context(), &l, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("no entry of %v", id)
}
