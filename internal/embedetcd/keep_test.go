package embedetcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// kept is an etcd within bounds, in this process.
func kept(t *testing.T, b bounds) (*clientv3.Client, string) {
	t.Helper()
	dir := t.TempDir()
	cfg := b.etcdConfig(dir, zap.NewNop())
	cfg.UnsafeNoFsync = true
	cfg.SnapshotCount = 50
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	t.Cleanup(func() {
		stop()
		<-done
		e.Close()
	})
	go func() {
		defer close(done)
		b.keep(ctx, e, zap.NewNop())
	}()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{EndpointOf(dir)}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client, dir
}

// size is what a directory takes.
func size(t *testing.T, dir string) (n int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil // it was removed meanwhile
		}
		if fi, err := d.Info(); err == nil {
			n += fi.Size()
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A flood of large requests does not fill the state directory: 120 MB are written
// to a few keys, as programs do that open and close files at very long paths, and
// the files stay below a bound, all the while and at the end. They grew from 17 MB
// to 2.4 GB in 90 s.
func TestFloodIsBounded(t *testing.T) {
	t.Parallel()
	c, dir := kept(t, bounds{tidy: 8 << 20, quota: 256 << 20, wals: 1, every: 50 * time.Millisecond})
	ctx := t.Context() // a disk may be slow
	value := strings.Repeat("x", 200<<10)
	most := int64(0)
	for i := range 600 {
		if _, err := c.Put(ctx, fmt.Sprint("key", i%5), value); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 {
			most = max(most, size(t, dir))
		}
	}
	// Two snapshots' worth of log, 20 MB, as much of the files that it ends in, a
	// database of 8 MB and what comes in while it is tidied.
	if most > 80<<20 {
		t.Errorf("its files took %d MB", most>>20)
	}
	eventually(t, "what is not needed is given back", func() error {
		if n := size(t, dir); n > 60<<20 {
			return fmt.Errorf("%d MB", n>>20)
		}
		return nil
	})
}

// At its quota etcd takes nothing new. The embedded one has no operator, and takes
// it again by itself when what lived is gone.
func TestQuotaEndsByItself(t *testing.T) {
	// Not beside TestFloodIsBounded: the size of log files is a global variable of etcd.
	c, _ := kept(t, bounds{tidy: 4 << 20, quota: 12 << 20, wals: 1, every: 50 * time.Millisecond})
	ctx := t.Context() // a disk may be slow
	value := strings.Repeat("x", 1<<20)
	n := 0
	for ; ; n++ {
		_, err := c.Put(ctx, fmt.Sprint("live", n), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			break
		}
		if err != nil || n > 100 {
			t.Fatalf("put %d: %v", n, err)
		}
	}
	if _, err := c.Delete(ctx, "live", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	for i := range 24 { // twice the quota
		eventually(t, "it takes something new", func() error {
			_, err := c.Put(ctx, fmt.Sprint("new", i%3), value)
			return err
		})
	}
}
