package csi

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

func TestFigures(t *testing.T) {
	ext4 := unix.Statfs_t{Frsize: 4096, Blocks: 100, Bfree: 50, Bavail: 40, Files: 10, Ffree: 4}
	ceph := unix.Statfs_t{Frsize: 4096, Blocks: 100, Bfree: 50, Bavail: 40, Files: 2, Ffree: ^uint64(0)}
	for _, c := range []struct {
		st    unix.Statfs_t
		units int
	}{{ext4, 2}, {ceph, 1}} {
		got := figures(c.st)
		if len(got.Usage) != c.units {
			t.Errorf("%+v: %v", c.st, got.Usage)
		}
		for _, u := range got.Usage {
			if u.Available < 0 || u.Used < 0 || u.Used > u.Total {
				t.Errorf("%+v: %v", c.st, u)
			}
		}
	}
}

// A pod ends while its volume is published by a view that hangs. When the view answers, nothing is
// mounted that nobody would unmount.
func TestUnpublishWhilePublishHangs(t *testing.T) {
	s := mountSlow(t, "lockfs", "a/v")
	kubelet := t.TempDir()
	if err := errors.Join(unix.Mount(kubelet, kubelet, "", unix.MS_BIND, ""), unix.Mount("", kubelet, "", unix.MS_SHARED, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mounts.Detach(kubelet) })
	volumes := []config.Volume{{Namespace: "a", Name: "v", Mountpoint: s.dir}}
	d := New(Config{KubeletDir: kubelet, Volumes: func() []config.Volume { return volumes }, Logger: slog.New(slog.DiscardHandler)})
	target := filepath.Join(kubelet, "target")
	publish := func() error {
		_, err := d.NodePublishVolume(t.Context(), &csi.NodePublishVolumeRequest{VolumeId: "a/v", TargetPath: target, VolumeCapability: &csi.VolumeCapability{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		}})
		return err
	}
	unpublish := func() {
		t.Helper()
		if _, err := d.NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "a/v", TargetPath: target}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the target path is there: %v", err)
		}
	}
	goOn := s.hang(t)
	published := make(chan error)
	go func() { published <- publish() }()
	for s.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := publish(); status.Code(err) != codes.Aborted {
		t.Errorf("a second publish: %v", err)
	}
	unpublish()
	goOn()
	if err := <-published; status.Code(err) != codes.Aborted {
		t.Errorf("the publish that hung: %v", err)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target path is there: %v", err)
	}
	if err := publish(); err != nil {
		t.Errorf("a later publish: %v", err)
	}
	unpublish()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.busy) != 0 || len(d.cancelled) != 0 {
		t.Errorf("left: %v, %v", d.busy, d.cancelled)
	}
}
