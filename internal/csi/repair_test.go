package csi

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/config"
)

// mountView mounts a view of a volume; one that is mute hangs whoever asks it.
func mountView(t *testing.T, id, dir string, mute bool) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if !mute {
		opts := fs.Options{MountOptions: fuse.MountOptions{Name: "lockfs", FsName: id, DirectMount: true}}
		if _, err := fs.Mount(dir, &fs.Inode{}, &opts); err != nil {
			t.Fatal(err)
		}
	} else {
		conn, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() }) // after this, nobody hangs
		if err := unix.Mount(id, dir, "fuse.lockfs", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", conn.Fd())); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for unix.Unmount(dir, unix.MNT_DETACH) == nil { // what has replaced it, too
		}
	})
}

// device returns the device number of what is mounted at a path, without asking it.
func device(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, 0, &st); err != nil {
		t.Fatal(err)
	}
	return unix.Mkdev(st.Dev_major, st.Dev_minor)
}

// A view that hangs while its mounts are repaired keeps no other volume's from being repaired, nor a
// driver from ending that cannot serve any more.
func TestRepairBesideAHungView(t *testing.T) {
	dir := t.TempDir()
	kubelet := filepath.Join(dir, "kubelet")
	var volumes []config.Volume
	for _, name := range []string{"hung", "well"} {
		v := config.Volume{Namespace: "a", Name: name, Mountpoint: filepath.Join(dir, name)}
		mountView(t, v.ID(), filepath.Join(kubelet, name), name == "hung")
		mountView(t, v.ID(), v.Mountpoint, name == "hung")
		volumes = append(volumes, v)
	}
	d := New(Config{KubeletDir: kubelet, Volumes: func() []config.Volume { return volumes }, Logger: slog.New(slog.DiscardHandler)})
	l, err := listen("unix://" + filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() { served <- d.serve(t.Context(), l) }()
	for device(t, filepath.Join(kubelet, "well")) != device(t, volumes[1].Mountpoint) {
		if t.Context().Err() != nil {
			t.Fatal("not repaired")
		}
		time.Sleep(time.Millisecond)
	}
	d.mu.Lock()
	if !d.busy["repair of a/hung"] {
		t.Error("the view does not hang")
	}
	if problem := d.reported["a/hung"]; problem != "" {
		t.Errorf("the other volume was repaired after %q", problem)
	}
	d.mu.Unlock()
	l.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want %v", err, net.ErrClosed)
	}
}

// Each change of the mount table is seen.
func TestEachChangeIsSeen(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount")
	}
	d := New(Config{Logger: slog.New(slog.DiscardHandler)})
	go d.watchMounts(t.Context())
	change := func() {
		t.Helper()
		dir := t.TempDir()
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	}
	for watches := false; !watches; {
		change()
		select {
		case <-d.look:
			watches = true
		case <-time.After(10 * time.Millisecond): // it has not begun yet
		}
	}
	for i := range 50 {
		change()
		select {
		case <-d.look:
		case <-time.After(time.Minute):
			t.Fatalf("change %d is not seen", i)
		}
	}
}
