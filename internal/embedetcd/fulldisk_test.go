package embedetcd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mountTmpfs mounts a file system of that many MiB over dir.
func mountTmpfs(t *testing.T, dir, mib string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small file system")
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+mib+"m,mode=0700"); err != nil {
		t.Skip("no mounts here:", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestNoRoomAtAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mountTmpfs(t, dir, "1")
	s, err := Start(t.Context(), Config{Dir: dir, Source: dir})
	var exit *ExitError
	if !errors.As(err, &exit) || !strings.Contains(exit.Reason, unix.ENOSPC.Error()) {
		t.Fatalf("Start = %v, %v, want an *ExitError about %v", s, err, unix.ENOSPC)
	}
	t.Log(err)
}

// etcd ends when its disk is full; what it has acknowledged is there again as
// soon as there is room.
func TestDiskFillsUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mountTmpfs(t, dir, "48")
	s := start(t, dir)
	c := connect(t, s)
	lease, rev := holdKey(t, c)

	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for err == nil {
		_, err = f.Write(make([]byte, 1<<16))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	first := etcdPID(t, dir)
	big := strings.Repeat("x", 1<<20)
	eventually(t, "etcd ends for want of room", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.Put(ctx, "big", big); err != nil && etcdPID(t, dir) != first {
			return nil
		}
		return errors.New("it serves")
	})
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil { // or its blocks stay taken
		t.Fatal(err)
	}
	checkHeld(t, c, lease, rev)
}
