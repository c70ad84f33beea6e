package integration

import (
	"encoding/hex"
	"encoding/json"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// Programs can read the fencing token of a file that is open for write, and by
// whom it is, on any mount; a later lock has a larger token. The attributes are
// not stored, not listed, and nobody sets them. (docs/SEMANTICS.md, rule 20.)
func TestLockAttributes(t *testing.T) { over(t, testLockAttributes, local, inLeases.forLong()) }

func testLockAttributes(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p := newAgent(t)
	get := func(path, attr string) string {
		t.Helper()
		r := p.do(call{Op: "getxattr", Path: path, Path2: attr})
		if r.Errno != 0 {
			t.Fatalf("%s of %s: %v", attr, path, r.Err())
		}
		value, err := hex.DecodeString(r.Data)
		if err != nil {
			t.Fatal(err)
		}
		return string(value)
	}
	const token, owner = "user.lockfs.token", "user.lockfs.owner"
	last := int64(0)
	for range 2 {
		fd := p.open(a.path("f"), wronly|create)
		held := v.ls()
		if len(held) != 1 {
			t.Fatalf("locked: %v", held)
		}
		for _, path := range []string{a.path("f"), b.path("f"), procFD(fd)} {
			got, err := strconv.ParseInt(get(path, token), 10, 64)
			if err != nil || got != held[0].Token || got <= last {
				t.Errorf("token of %s: %d, %v, want %d, and more than %d", path, got, err, held[0].Token, last)
			}
			var holder struct {
				Node string
				PID  int
			}
			if err := json.Unmarshal([]byte(get(path, owner)), &holder); err != nil || holder.Node != "a" || holder.PID != p.pid() {
				t.Errorf("owner of %s: %+v, %v", path, holder, err)
			}
		}
		last = held[0].Token
		if err := unix.Setxattr(a.path("f"), "user.mine", []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		names := make([]byte, 4096)
		n, err := unix.Listxattr(a.path("f"), names)
		if err != nil || string(names[:n]) != "user.mine\x00" {
			t.Errorf("attributes: %q, %v", names[:max(n, 0)], err)
		}
		p.fails(call{Op: "setxattr", Path: a.path("f"), Path2: token, Data: "31"}, unix.EPERM)
		p.must(call{Op: "close", FD: fd})
		eventually(t, "the lock is free", func() bool { return len(v.ls()) == 0 })
		for _, m := range []*mount{a, b} {
			p.fails(call{Op: "getxattr", Path: m.path("f"), Path2: token}, unix.ENODATA)
		}
	}
}
