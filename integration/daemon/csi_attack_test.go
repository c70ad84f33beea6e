package daemon

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/internal/mounts"
)

// viewed is a node with the view of one volume, and a driver.
func viewed(t *testing.T, volume string) (*node, *driver) {
	t.Helper()
	n := newNode(t)
	n.makeSources("v")
	n.list(volume)
	d := n.driver()
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	return n, d
}

func (d *driver) mustUnpublish(target string) {
	d.t.Helper()
	if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
		d.t.Error(err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("%s is left: %v", target, err)
	}
}

// mountsAt counts the mounts at a path.
func mountsAt(t *testing.T, path string) int {
	t.Helper()
	table, err := mounts.List()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range table {
		if m.Point == path {
			n++
		}
	}
	return n
}

// A program keeps the file that it has open, and its lock, when its volume is unpublished.
func TestCSIUnpublishedInUse(t *testing.T) {
	t.Parallel()
	n, d := viewed(t, "v")
	target := d.mustPublish("a", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	f, err := lab.OpenFile(filepath.Join(target, "f"), os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	if err != nil {
		t.Fatal(err)
	}
	locks := func() string { return lab.Output(t, lab.Program, "ls", "--config", n.config, n.view("v")) }
	d.mustUnpublish(target)
	if _, err := f.WriteString("kept"); err != nil {
		t.Errorf("a write by the open file: %v", err)
	}
	if out := locks(); !strings.Contains(out, "\nf ") {
		t.Errorf("it has no lock: %s", out)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	lab.Eventually(t, "the lock is released", func() bool { return !strings.Contains(locks(), "\nf ") })
	if b, err := os.ReadFile(filepath.Join(n.source("v"), "f")); string(b) != "kept" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
}

// After a restart of the machine the kubelet's directories are there, and nothing is mounted in them.
// What was written to such a directory is not removed.
func TestCSIStalePaths(t *testing.T) {
	t.Parallel()
	_, d := viewed(t, "v")
	stale := filepath.Join(d.kubelet, "a")
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	d.mustUnpublish(stale)
	if err := os.Mkdir(stale, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, stale, "bare", "below the mount")
	target := d.mustPublish("a", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	if lab.FSType(target) != unix.FUSE_SUPER_MAGIC {
		t.Error("no view is mounted")
	}
	if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err == nil {
		t.Error("a directory with a file was unpublished")
	}
	if b, err := os.ReadFile(filepath.Join(stale, "bare")); string(b) != "below the mount" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if err := os.RemoveAll(stale); err != nil {
		t.Fatal(err)
	}
	// A link in the place of the target leads nowhere.
	link := filepath.Join(d.kubelet, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	if _, err := d.publish("link", &csi.NodePublishVolumeRequest{VolumeId: "default/v"}); err == nil {
		t.Error("published through a symbolic link")
	}
	if _, err := d.publish("../outside", &csi.NodePublishVolumeRequest{VolumeId: "default/v"}); err == nil {
		t.Error("published outside of the kubelet's directory")
	}
}

// The driver is killed at any instant: what it has done is read from the mount table, so the kubelet's
// next call goes on from there. A pod whose view is repaired meanwhile has it in the end.
func TestCSIDriverIsKilled(t *testing.T) {
	t.Parallel()
	n, d := viewed(t, "v ttl: 3s,")
	inPod := d.mustPublish("pod", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	in := t.TempDir()
	p := startPod(t, "mount --bind "+inPod+" "+in)
	for range longtest.Seeds(t, 5, 20) {
		// The call's answer is lost with the driver.
		after := func(call func(ctx context.Context)) {
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { call(ctx); close(done) }()
			<-time.After(rand.N(5 * time.Millisecond))
			d.kill()
			cancel()
			<-done
			d.start()
		}
		target := filepath.Join(d.kubelet, "a")
		after(func(ctx context.Context) {
			_, _ = d.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: "default/v", TargetPath: target, VolumeCapability: capability()})
		})
		lab.Eventually(t, "it is published", func() bool { // a call may meet the connection that died
			_, err := d.publish("a", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
			return err == nil
		})
		if k := mountsAt(t, target); k != 1 {
			t.Fatalf("%d mounts at the path", k)
		}
		after(func(ctx context.Context) {
			_, _ = d.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: "default/v", TargetPath: target})
		})
		lab.Eventually(t, "it is unpublished", func() bool {
			_, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "default/v", TargetPath: target})
			return err == nil
		})
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("it is left: %v", err)
		}

		n.Kill()
		n.start()
		lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
		<-time.After(rand.N(20 * time.Millisecond))
		d.kill()
		d.start()
		lab.Eventually(t, "the pod and the kubelet have the new view", func() bool {
			return p.run("stat -f -c %t "+in) == "65735546\n--- 0\n" && lab.FSType(inPod) == unix.FUSE_SUPER_MAGIC
		})
	}
	lab.Eventually(t, "the last driver answers", func() bool {
		_, err := d.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
		return err == nil
	})
	d.mustUnpublish(inPod)
}

// Many pods of a node have their views again.
func TestCSIManyPods(t *testing.T) {
	t.Parallel()
	n, d := viewed(t, "v ttl: 3s,")
	pods := 100
	if longtest.For(t) > 0 {
		pods = 1000
	}
	targets := make([]string, pods)
	for i := range targets {
		targets[i] = d.mustPublish(fmt.Sprint("pod", i), &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	}
	n.Kill()
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	start := time.Now()
	for _, target := range targets {
		lab.Eventually(t, "the pod has the new view", func() bool { return lab.FSType(target) == unix.FUSE_SUPER_MAGIC })
	}
	t.Logf("%d pods had their view %v after there was one", pods, time.Since(start).Round(time.Millisecond))
	for _, target := range targets {
		if k := mountsAt(t, target); k != 1 {
			t.Errorf("%d mounts at %s", k, target)
		}
		d.mustUnpublish(target)
	}
}
