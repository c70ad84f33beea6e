package kubelease_test

import (
	"testing"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// All mounts of a volume find one id, that of a Lease which holds nothing. In another
// namespace of the same API server it is another, and copies of the Leases have another.
func TestService(t *testing.T) {
	name := newName()
	b := newBackend(t, name)
	for range 2 { // to look creates nothing
		if s := found(t, b); s.ID != uuid.Nil || s.Kind != lockmgr.KindKubernetes || s.At != space {
			t.Errorf("before anybody has asked for its id: %+v", s)
		}
	}
	s := serviceOf(t, b)
	if looked := found(t, b); looked != s {
		t.Errorf("%s, and to one who looks %s", s, looked)
	}
	if again := serviceOf(t, newBackend(t, name)); s.Kind != lockmgr.KindKubernetes || !again.Is(s) || s.At != space {
		t.Errorf("%s, then %s", s, again)
	}
	leases := raw(t)
	list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "lockfs.io/kind=service"})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range list.Items {
		if string(l.UID) != s.ID.String() {
			continue
		}
		if err := leases.Delete(t.Context(), l.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		l.ResourceVersion = ""
		if _, err := leases.Create(t.Context(), &l, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if copied := serviceOf(t, newBackend(t, name)); copied.Is(s) {
			t.Error("a copy has the id")
		}
		return
	}
	t.Errorf("no Lease has the UID %s", s.ID)
}
