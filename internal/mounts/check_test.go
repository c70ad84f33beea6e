package mounts

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes directories below a fresh one, which is returned.
func tree(t *testing.T, dirs ...string) string {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func link(t *testing.T, to, from string) {
	t.Helper()
	if err := os.Symlink(to, from); err != nil {
		t.Fatal(err)
	}
}

func TestCheckSource(t *testing.T) {
	root := tree(t, "src")
	src := filepath.Join(root, "src")
	link(t, src, filepath.Join(root, "link"))
	t.Chdir(root)
	for _, path := range []string{src, "src", "link", "./src/../link/"} {
		if got, err := CheckSource(path); got != src || err != nil {
			t.Errorf("CheckSource(%q) = %q, %v, want %q", path, got, err, src)
		}
	}

	if err := os.WriteFile("file", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	link(t, "nowhere", "dangling")
	for path, want := range map[string]error{
		"":         unix.ENOENT,
		"no":       unix.ENOENT,
		"dangling": unix.ENOENT,
		"file":     unix.ENOTDIR,
		"file/x":   unix.ENOTDIR,
	} {
		_, err := CheckSource(path)
		var pe *PathError
		if !errors.As(err, &pe) || !errors.Is(err, want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("CheckSource(%q) = %v, want %v", path, err, want)
		}
		t.Log(err)
	}
}

func TestCheckSourceOnDeadMount(t *testing.T) {
	dir := t.TempDir()
	mountDead(t, "/srv/data", dir)
	_, err := CheckSource(dir)
	if path := new(PathError); !errors.Is(err, unix.ENOTCONN) || !errors.As(err, &path) || !path.MayPass() {
		t.Errorf("CheckSource = %v, want ENOTCONN, which may pass", err)
	}
}

func TestCheckMountpoint(t *testing.T) {
	root := tree(t, "a/src/in", "a/src2", "mnt", "full/x", "empty")
	at := func(p string) string { return filepath.Join(root, p) }
	link(t, at("a/src/in"), at("link"))
	for mountpoint, want := range map[string]string{
		"mnt":    "",
		"a/src2": "", // a prefix of the name is no ancestor
		"full":   "not empty",
		"no":     "no such file",
		"a/src":  "SOURCE itself",
		"link":   "inside SOURCE",
		"a":      "has SOURCE",
	} {
		got, err := CheckMountpoint(at("a/src"), at(mountpoint))
		if want == "" {
			if got != at(mountpoint) || err != nil {
				t.Errorf("%s: %q, %v", mountpoint, got, err)
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q in it", mountpoint, err, want)
		}
		t.Log(err)
	}
}

// Another daemon can have mounted its view since the mountpoint was looked at. What is in that view is
// not asked.
func TestCheckMountpointOfAView(t *testing.T) {
	root := tree(t, "src", "mnt")
	at := func(p string) string { return filepath.Join(root, p) }
	mountFuse(t, at("src"), at("mnt"), FSType)
	var mounted *MountedError
	if _, err := CheckMountpoint(at("src"), at("mnt")); !errors.As(err, &mounted) || !strings.Contains(err.Error(), "already a lockfs view of "+at("src")) {
		t.Errorf("%v, want a *MountedError", err)
	}
}

// Through a bind mount the paths have nothing in common.
func TestCheckMountpointBehindBindMount(t *testing.T) {
	root := tree(t, "src/in", "view")
	at := func(p string) string { return filepath.Join(root, p) }
	mount(t, at("src"), at("view"), "", unix.MS_BIND, "")
	for mountpoint, want := range map[string]string{"view": "SOURCE itself", "view/in": "inside SOURCE"} {
		if _, err := CheckMountpoint(at("src"), at(mountpoint)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", mountpoint, err, want)
		}
	}
	if _, err := CheckMountpoint(at("view/in"), at("src")); err == nil || !strings.Contains(err.Error(), "has SOURCE") {
		t.Errorf("SOURCE below a bind mount of MOUNTPOINT: %v", err)
	}
}

func TestCheckFuse(t *testing.T) {
	err := CheckFuse()
	if _, statErr := os.Stat(devFuse); statErr != nil || os.Geteuid() != 0 {
		t.Skip("depends on what is installed:", err)
	}
	if err != nil {
		t.Errorf("as root with %s: %v", devFuse, err)
	}
}

func TestFuseErrorSaysWhatToDo(t *testing.T) {
	for _, err := range []error{unix.ENOENT, unix.ENXIO, unix.EPERM} {
		got := fuseError(err)
		if !errors.Is(got, err) || !strings.Contains(got.Error(), "--device /dev/fuse") {
			t.Errorf("%v: %v", err, got)
		}
		if modprobe := strings.Contains(got.Error(), "modprobe"); modprobe == errors.Is(err, unix.EPERM) {
			t.Errorf("%v: %v", err, got)
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := fusermount(); err == nil || !strings.Contains(err.Error(), "apt install fuse3") {
		t.Errorf("without fusermount3: %v", err)
	}
}
