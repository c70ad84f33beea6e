package integration

import (
	"context"
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
	a, b := tr.mount("a"), tr.mount("b", "--wait", "1s")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("held"), wronly|create)
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
	eventually(t, "what is closed is let go", func() bool {
		for _, e := range tr.ls() {
			if e.Path == "held" {
				return false
			}
		}
		return true
	})

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
