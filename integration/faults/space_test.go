package faults

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// An etcd that has no space left grants nothing new. What is held stays held,
// can be written and is let go, and all goes on when the operator has made room.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	c := lab.NewCluster(t, func(m *lab.MemberConfig) { m.Quota = 8 << 20 })
	tr := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m")
	a, b, stuck := tr.Mount("a"), tr.Mount("b", "--wait", "1s"), tr.Mount("stuck")
	holder, other, victim := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("held"), unix.O_WRONLY|unix.O_CREAT)
	broken := victim.Open(stuck.Path("broken"), unix.O_WRONLY|unix.O_CREAT)
	tr.Load(a)
	tr.Load(b)
	tr.GoesOn("before the fault")

	ctx, cancel := context.WithTimeout(t.Context(), lab.CallTimeout)
	defer cancel()
	filler := strings.Repeat("x", 1<<20)
	lab.Eventually(t, "etcd is full", func() bool {
		_, err := c.Client.Put(ctx, "filler", filler)
		return errors.Is(err, rpctypes.ErrNoSpace) // not any other: a slow machine has those
	})
	tr.Saw(history.Monotonic(), "an open is refused", func(o history.Op) bool { return o.Kind == history.Acquired && o.Errno == unix.ENOLCK })
	other.Fails(lab.Call{Op: "open", Path: b.Path("other"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK}, unix.ENOLCK)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	locked := func(path string) bool {
		return slices.ContainsFunc(tr.LS(), func(e lab.Entry) bool { return e.Path == path })
	}
	lab.Eventually(t, "what is closed is let go", func() bool { return !locked("held") })

	// A holder cannot be asked: there is no room for the question. By force it ends.
	path := stuck.Path("broken")
	status, stdout, stderr := lab.Outcome(t, tr.Command("break", path, "--reason", "full"))
	if status != 1 || stdout != "" || !strings.Contains(stderr, "no space") || !strings.Contains(stderr, "--force ends its session") || !locked("broken") {
		t.Errorf("break: exit status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = lab.Outcome(t, tr.Command("break", path, "--reason", "full", "--force"))
	if status != 0 || !strings.Contains(stdout, "broken by force: broken was held by pid ") || !strings.Contains(stdout, "no space") || locked("broken") {
		t.Errorf("break --force: exit status %d, %q, %q", status, stdout, stderr)
	}
	lab.Eventually(t, "its mount knows", stuck.LostItsSession)
	victim.Fails(lab.Call{Op: "write", FD: broken, Data: "x"}, unix.EIO)

	lab.Answers(t, "the filler is deleted", func(ctx context.Context) error { return second(c.Client.Delete(ctx, "filler")) })
	c.Compact()
	c.Defragment()
	lab.Answers(t, "the alarm is disarmed", func(ctx context.Context) error {
		return second(c.Client.AlarmDisarm(ctx, &clientv3.AlarmMember{}))
	})
	tr.GoesOn("with space again")
	tr.Finish()
	tr.Spared()
}
