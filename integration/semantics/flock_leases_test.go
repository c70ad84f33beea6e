package semantics

import (
	"testing"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/lockfs/lockfs/integration/lab"
)

// Somebody deletes the Lease of a file's flocks while one mount has the lock and another waits: the
// holder writes no more once the next has the lock, and nothing stays locked. (docs/SEMANTICS.md,
// rule 32.)
func TestFlockTableIsDeleted(t *testing.T) { lab.Over(t, testFlockTableIsDeleted, lab.InLeases) }

func testFlockTableIsDeleted(t *testing.T, on lab.Setup) {
	client, err := coordinationclient.NewForConfig(on.Server.Config)
	if err != nil {
		t.Fatal(err)
	}
	v := newFlocks(t, on)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "------")
	holder, next := lab.NewAgent(t), lab.NewAgent(t)
	fd, other := holder.Open(a.Path("f"), unix.O_RDWR), next.Open(b.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: fd, Flags: lockEx})
	holder.Must(lab.Call{Op: "pwrite", FD: fd, Data: "mine"})
	pending := next.Start(lab.Call{Op: "flock", FD: other, Flags: lockEx})
	lab.Eventually(t, "the next waits", func() bool { return waitsFor(v) == 1 })

	leases := client.Leases(on.Space)
	if err := leases.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "lockfs.io/kind=advisory"}); err != nil {
		t.Fatal(err)
	}
	if r := lab.Await(t, "the next", pending); r.Errno != 0 {
		t.Fatalf("the next: %v", r.Err())
	}
	lab.Eventually(t, "the holder writes no more", func() bool {
		return holder.Do(lab.Call{Op: "pwrite", FD: fd, Data: "late"}).Errno == unix.EIO
	})
	next.Must(lab.Call{Op: "pwrite", FD: other, Data: "theirs"})
	holder.Fails(lab.Call{Op: "pwrite", FD: fd, Data: "latest"}, unix.EIO)
	if got := v.Read("f"); got != "theirs" {
		t.Errorf("the file holds %q", got)
	}
	next.Must(lab.Call{Op: "flock", FD: other, Flags: unlock})
	again := holder.Open(a.Path("f"), unix.O_RDWR)
	holder.Must(lab.Call{Op: "flock", FD: again, Flags: lockEx})
	holder.Must(lab.Call{Op: "pwrite", FD: again, Data: "again-"})
}
