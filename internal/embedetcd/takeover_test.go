package embedetcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// connect returns a client of the lock service. It comes back at once after a
// takeover: gRPC's own pause after a failed attempt starts at a second.
func connect(t *testing.T, s *Server) *clientv3.Client {
	t.Helper()
	fast := backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, MaxDelay: 200 * time.Millisecond}
	// Without MinConnectTimeout an attempt must end within BaseDelay, and may leave a closed connection.
	params := grpc.ConnectParams{Backoff: fast, MinConnectTimeout: 20 * time.Second}
	c, err := clientv3.New(clientv3.Config{
		Endpoints:   []string{s.Endpoint()},
		Logger:      zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(params)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// holdKey puts a key on a lease of 60 s.
func holdKey(t *testing.T, c *clientv3.Client) (clientv3.LeaseID, int64) {
	t.Helper()
	lease, err := c.Grant(t.Context(), 60)
	if err != nil {
		t.Fatal(err)
	}
	put, err := c.Put(t.Context(), "key", "value", clientv3.WithLease(lease.ID))
	if err != nil {
		t.Fatal(err)
	}
	return lease.ID, put.Header.Revision
}

// checkHeld makes sure that what holdKey did is still so.
func checkHeld(t *testing.T, c *clientv3.Client, lease clientv3.LeaseID, rev int64) {
	t.Helper()
	var got *clientv3.GetResponse
	eventually(t, "the joined client goes on", func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got, err = c.Get(ctx, "key")
		return err
	})
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" ||
		got.Kvs[0].CreateRevision != rev || got.Kvs[0].Lease != int64(lease) {
		t.Errorf("after the takeover: %v, want value on lease %x created at %d", got.Kvs, lease, rev)
	}
	if _, err := c.KeepAliveOnce(t.Context(), lease); err != nil {
		t.Errorf("lease after the takeover: %v", err)
	}
}

// timeTakeover measures from cause until etcd answers another process.
func timeTakeover(t *testing.T, s *Server, old int, cause func()) {
	t.Helper()
	began := time.Now()
	cause()
	eventually(t, "somebody takes over", func() error {
		if pid := etcdPID(t, s.dir); pid == old {
			return fmt.Errorf("still served by %d", pid)
		}
		return probe(t.Context(), socketPath(s.dir))
	})
	t.Logf("takeover took %s", time.Since(began).Round(time.Millisecond))
}

func TestTakeoverAfterKill(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	serving := launch(t, dir)
	serving.waitReady(t)
	s := start(t, dir)
	c := connect(t, s)
	lease, rev := holdKey(t, c)

	timeTakeover(t, s, etcdPID(t, dir), serving.kill)
	checkHeld(t, c, lease, rev)
}

func TestTakeoverByAnotherProcess(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	first := start(t, dir)
	other := launch(t, dir)
	other.waitReady(t)
	c := connect(t, first)
	lease, rev := holdKey(t, c)

	timeTakeover(t, first, etcdPID(t, dir), first.Close)
	checkHeld(t, c, lease, rev)
}

func TestRestartAfterEtcdIsKilled(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s := start(t, dir)
	c := connect(t, s)
	lease, rev := holdKey(t, c)

	pid := etcdPID(t, dir)
	timeTakeover(t, s, pid, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	checkHeld(t, c, lease, rev)
}

// A frozen mount's lease can expire only if the lock service it serves is not
// frozen with it. Signals that a terminal or systemd sends to a whole group
// must not end it before the mount has released its locks.
func TestEtcdIsNotItsMount(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	serving := launch(t, dir)
	serving.waitReady(t)
	s := start(t, dir)
	pid := etcdPID(t, dir)

	serving.signal(t, syscall.SIGSTOP)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if err := syscall.Kill(pid, sig); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := connect(t, s).Put(t.Context(), "key", "value"); err != nil {
		t.Error(err)
	}
	if now := etcdPID(t, dir); now != pid {
		t.Errorf("served by %d, before by %d", now, pid)
	}
	if pgid, err := syscall.Getpgid(pid); err != nil || pgid != pid {
		t.Errorf("process group of %d is %d, %v", pid, pgid, err)
	}
}

func TestConcurrentStarts(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	var mounts []*mount
	for range 4 {
		mounts = append(mounts, launch(t, dir))
	}
	for _, m := range mounts {
		m.waitReady(t)
	}
	if pids := etcdPIDs(t, dir); len(pids) != 1 || pids[0] != etcdPID(t, dir) {
		t.Errorf("etcd processes %v, want only %d", pids, etcdPID(t, dir))
	}
}

// A takeover that fails is tried again until it works.
func TestTakeoverIsRetried(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s := start(t, dir)
	c := connect(t, s)
	lease, rev := holdKey(t, c)

	hidden := dataPath(dir) + ".hidden"
	if err := os.Rename(dataPath(dir), hidden); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dataPath(dir), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := etcdPID(t, dir)
	if err := syscall.Kill(first, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "etcd is started again and fails", func() error {
		if pid := etcdPID(t, dir); pid == first || syscall.Kill(pid, 0) == nil {
			return errors.New("no failure yet")
		}
		return nil
	})
	// At no moment is there nothing: etcd would begin with an empty directory.
	if err := unix.Renameat2(unix.AT_FDCWD, hidden, unix.AT_FDCWD, dataPath(dir), unix.RENAME_EXCHANGE); err != nil {
		t.Fatal(err)
	}
	checkHeld(t, c, lease, rev)
}

func TestClose(t *testing.T) {
	dir := stateDir(t)
	s := start(t, dir)
	began := time.Now()
	watch := connect(t, s).Watch(t.Context(), "key") // would hold a graceful stop up
	if _, err := connect(t, s).Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	<-watch
	s.Close()
	s.Close()
	t.Logf("Close took %s", time.Since(began).Round(time.Millisecond))
	lock, err := tryLock(lockPath(dir))
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	lock.Close()
	if pids := etcdPIDs(t, dir); len(pids) != 0 {
		t.Errorf("after Close: etcd processes %v", pids)
	}
	if _, err := os.Lstat(socketPath(dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: socket: %v", err)
	}
}
