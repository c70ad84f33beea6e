package integration

import (
	"context"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// An etcd that has no space left grants nothing new. What is held stays held,
// can be written and is let go, and all goes on when the operator has made room.
func TestNoSpace(t *testing.T) {
	c := newCluster(t, func(m *memberConfig) { m.Quota = 8 << 20 })
	tr := newTrial(t, c, "--wait", "-1")
	a, b, stuck := tr.mount("a"), tr.mount("b", "--wait", "1s"), tr.mount("stuck")
	holder, other, victim := newAgent(t), newAgent(t), newAgent(t)
	fd := holder.open(a.path("held"), wronly|create)
	broken := victim.open(stuck.path("broken"), wronly|create)
	tr.load(a)
	tr.load(b)
	tr.goesOn("before the fault")

	ctx, cancel := context.WithTimeout(t.Context(), callTimeout)
	defer cancel()
	filler := strings.Repeat("x", 1<<20)
	eventually(t, "etcd is full", func() bool {
		_, err := c.client.Put(ctx, "filler", filler)
		return err != nil
	})
	tr.saw(monotonic(), "an open is refused", func(o op) bool { return o.Kind == acquired && o.Errno == unix.ENOLCK })
	other.fails(call{Op: "open", Path: b.path("other"), Flags: wronly | create | nonblock}, unix.ENOLCK)
	holder.must(call{Op: "write", FD: fd, Data: "x"})
	holder.must(call{Op: "close", FD: fd})
	locked := func(path string) bool {
		return slices.ContainsFunc(tr.ls(), func(e entry) bool { return e.Path == path })
	}
	eventually(t, "what is closed is let go", func() bool { return !locked("held") })

	// A holder cannot be asked: there is no room for the question. By force it ends.
	path := stuck.path("broken")
	status, stdout, stderr := outcome(t, tr.command("break", path, "--reason", "full"))
	if status != 1 || stdout != "" || !strings.Contains(stderr, "no space") || !strings.Contains(stderr, "--force ends its session") || !locked("broken") {
		t.Errorf("break: exit status %d, %q, %q", status, stdout, stderr)
	}
	status, stdout, stderr = outcome(t, tr.command("break", path, "--reason", "full", "--force"))
	if status != 0 || !strings.Contains(stdout, "broken by force: broken was held by pid ") || !strings.Contains(stdout, "no space") || locked("broken") {
		t.Errorf("break --force: exit status %d, %q, %q", status, stdout, stderr)
	}
	eventually(t, "its mount knows", stuck.lostItsSession)
	victim.fails(call{Op: "write", FD: broken, Data: "x"}, unix.EIO)

	if _, err := c.client.Delete(ctx, "filler"); err != nil {
		t.Fatal(err)
	}
	c.compact()
	c.defragment()
	if _, err := c.client.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	tr.goesOn("with space again")
	tr.finish()
	tr.spared()
}
