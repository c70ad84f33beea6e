// Package csi runs csi-sanity, the suite of the Container Storage Interface, against 'lockfs csi' with a
// real view. It is a module of its own: the suite needs much that lockfs does not.
package csi

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// slow connects after three seconds. The suite takes a connection that is made before it looks at it for one
// that is never made.
type slow struct {
	credentials.TransportCredentials
}

func (s slow) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	time.Sleep(3 * time.Second)
	return s.TransportCredentials.ClientHandshake(ctx, authority, conn)
}

func (s slow) Clone() credentials.TransportCredentials { return slow{s.TransportCredentials.Clone()} }

func TestSanity(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	program := os.Getenv("LOCKFS_TEST_PROGRAM")
	if program == "" {
		program = filepath.Join(t.TempDir(), "lockfs")
		build := exec.Command("go", "build", "-o", program, "./cmd/lockfs")
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"source", "view", "kubelet"} {
		if err := os.Mkdir(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	state, err := os.MkdirTemp("/dev/shm", "lfs") // fsync costs nothing there
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	// As the kubelet's directory: others see mounts in it.
	if err := errors.Join(unix.Mount(in("kubelet"), in("kubelet"), "", unix.MS_BIND, ""), unix.Mount("", in("kubelet"), "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(in("kubelet"), unix.MNT_DETACH) })
	config := "volumes:\n- {namespace: team, name: v, source: " + in("source") + ", mountpoint: " + in("view") + ", endpoints: [unix:///not/used]}\n"
	if err := os.WriteFile(in("lockfs.yaml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) {
		cmd := exec.Command(program, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "LOCKFS_STATE_DIR="+state), os.Stderr, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Signal(unix.SIGTERM)
			if err := cmd.Wait(); err != nil {
				t.Errorf("lockfs %v: %v", args, err)
			}
		})
	}
	start("mount", "--namespace", "team", "--name", "v", in("source"), in("view"))
	start("csi", "--config", in("lockfs.yaml"), "--endpoint", "unix://"+in("node.sock"), "--kubelet-dir", in("kubelet"), "--node", "n")
	start("csi", "--controller", "--config", in("lockfs.yaml"), "--endpoint", "unix://"+in("controller.sock"))
	there := func() bool {
		var st unix.Statfs_t
		_, node := os.Stat(in("node.sock"))
		_, controller := os.Stat(in("controller.sock"))
		return unix.Statfs(in("view"), &st) == nil && st.Type == unix.FUSE_SUPER_MAGIC && node == nil && controller == nil
	}
	for deadline := time.Now().Add(3 * time.Minute); !there(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the view or a driver is not there")
		}
	}
	suite := sanity.NewTestConfig()
	suite.Address, suite.ControllerAddress = "unix://"+in("node.sock"), "unix://"+in("controller.sock")
	suite.DialOptions = []grpc.DialOption{grpc.WithTransportCredentials(slow{insecure.NewCredentials()}), grpc.WithAuthority("localhost")}
	suite.ControllerDialOptions = suite.DialOptions
	suite.TargetPath, suite.StagingPath = in("kubelet/target"), in("kubelet/staging")
	suite.TestVolumeParameters = map[string]string{"volume": "team/v", "directory": "claims", "mode": "0770"}
	sanity.Test(t, suite)
	if left, err := os.ReadDir(in("source/claims")); err != nil || len(left) != 1 {
		t.Errorf("claims that are left, beside their records' directory: %v, %v", left, err)
	}
	if left, err := os.ReadDir(in("source/claims/.lockfs-claims")); err != nil || len(left) != 0 {
		t.Errorf("records that are left: %v, %v", left, err)
	}
}
