package fs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

// losing makes the view's session end once, right behind the next grant.
func (v *movedView) losing() {
	v.t.Helper()
	ctx := v.t.Context()
	done := false
	lose := func(e lockmgr.Event) {
		if granted, ok := e.(lockmgr.RequestEnded); !ok || granted.Err != nil || done {
			return
		}
		done = true
		v.revoke()
	}
	m, err := lockmgr.New(ctx, lockmgr.Config{Backend: v.svc, Renew: renew.Config{TTL: 15 * time.Second, Clock: bubbleClock{}}, Observe: lose})
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { m.Close(ctx) })
	v.fs.locks = m
}

// revoke ends the session that has locks, and returns when its mount knows.
func (v *movedView) revoke() {
	v.t.Helper()
	entries, err := v.svc.Entries(v.t.Context(), "")
	if err != nil || len(entries) == 0 {
		v.t.Fatal(entries, err)
	}
	if err := v.svc.Revoke(v.t.Context(), entries[0].Holder.Session); err != nil {
		v.t.Fatal(err)
	}
	synctest.Wait()
}

// A lock that is lost between its grant and the open is no lock: nothing is truncated, and
// the kernel looks again and gets another.
func TestSessionLostDuringOpen(t *testing.T) {
	for name, test := range map[string]struct {
		flags uint32
		links int
	}{
		"open for write":        {flags: unix.O_WRONLY},
		"truncate":              {flags: unix.O_WRONLY | unix.O_TRUNC},
		"truncate, to be read":  {flags: unix.O_RDONLY | unix.O_TRUNC},
		"one of two names":      {flags: unix.O_WRONLY, links: 1},
		"truncate by two names": {flags: unix.O_WRONLY | unix.O_TRUNC, links: 1},
	} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				path, text := filepath.Join(v.source, "f"), []byte("text")
				if err := os.WriteFile(path, text, 0o644); err != nil {
					v.t.Fatal(err)
				}
				if test.links > 0 {
					if err := os.Link(path, filepath.Join(v.source, "g")); err != nil {
						v.t.Fatal(err)
					}
				}
				one := thread{v, 1}
				node := one.look("f")
				v.losing()
				in, out := fuse.OpenIn{InHeader: one.header(node), Flags: test.flags}, fuse.OpenOut{}
				s := v.fs.Open(nil, &in, &out)
				if s != stale {
					v.t.Errorf("%v, want ESTALE", s)
				}
				if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, text) {
					v.t.Errorf("the file has %q, %v", now, err)
				}
			})
		})
	}
}

// What was under way when the lock was lost has no success to tell: another owner may have written
// before it landed, and what it read may be what that one wrote.
func TestLockLostDuringACall(t *testing.T) {
	for name, flags := range map[string]uint32{"write": unix.O_RDWR, "read": unix.O_RDONLY} {
		t.Run(name, func(t *testing.T) {
			inMovedView(t, func(v *movedView) {
				if err := os.WriteFile(filepath.Join(v.source, "f"), []byte("text"), 0o644); err != nil {
					v.t.Fatal(err)
				}
				one := thread{v, 1}
				n, header := v.fs.nodes.get(one.look("f")), one.header(rootID)
				m, err := lockmgr.New(v.t.Context(), lockmgr.Config{Backend: v.svc, Renew: renew.Config{TTL: 15 * time.Second, Clock: bubbleClock{}}})
				if err != nil {
					v.t.Fatal(err)
				}
				defer m.Close(v.t.Context())
				req := lockmgr.Request{Keys: []lockmgr.Key{{Kind: lockmgr.File, Path: "f"}}, Owner: "1", Mode: lockmgr.Shared}
				if writes(flags) {
					req.Mode = lockmgr.Exclusive
				}
				hold, err := m.Acquire(v.t.Context(), req)
				if err != nil {
					v.t.Fatal(err)
				}
				fd, err := unix.Open(filepath.Join(v.source, "f"), int(flags), 0)
				if err != nil {
					v.t.Fatal(err)
				}
				h := v.fs.newHandle(n, fd, flags, hold, &reservation{payer: payerOf("", 1)})
				lose := func() error {
					v.revoke()
					return nil
				}
				var s fuse.Status
				if writes(flags) {
					s = v.fs.change(nil, &header, h, func(check func() error) error { return checked(check, lose)() })
				} else {
					s = v.fs.reading(nil, &header, h, lose)
				}
				if s != fuse.EIO {
					v.t.Errorf("%v, want EIO", s)
				}
				hold.Release()
				unix.Close(fd)
			})
		})
	}
}
