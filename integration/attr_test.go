package integration

import (
	"testing"

	"golang.org/x/sys/unix"
)

// listxattr shows the names that getxattr shows, and their size.
func TestListXAttr(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	v.write("f", "")
	root, user := newAgent(t), v.newUser(1000, 0)
	for _, attr := range []string{"trusted.t", "user.u", "trusted.v"} {
		root.must(call{Op: "setxattr", Path: a.path("f"), Path2: attr, Data: "01"})
	}
	for _, c := range []struct {
		p    *agent
		want string
	}{{root, "trusted.t trusted.v user.u"}, {user, "user.u"}} {
		size := len(c.want) + 1
		if got := c.p.must(call{Op: "listxattr", Path: a.path("f")}); got != size {
			t.Errorf("the size of %q is told as %d", c.want, got)
		}
		if r := c.p.do(call{Op: "listxattr", Path: a.path("f"), N: size}); r.Data != c.want || r.N != size {
			t.Errorf("listed: %q (%d, %v), want %q", r.Data, r.N, r.Err(), c.want)
		}
		c.p.fails(call{Op: "listxattr", Path: a.path("f"), N: size - 1}, unix.ERANGE)
	}
}
