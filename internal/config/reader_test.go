package config

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// A change counts once it stands still, whatever becomes of the file: a
// ConfigMap replaces a symbolic link above it.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	put := func(version, text string) {
		t.Helper()
		err := errors.Join(os.Mkdir(filepath.Join(dir, version), 0o755),
			os.WriteFile(filepath.Join(dir, version, "f"), []byte(text), 0o644),
			os.Symlink(version, filepath.Join(dir, "new")),
			os.Rename(filepath.Join(dir, "new"), filepath.Join(dir, "data")))
		if err != nil {
			t.Fatal(err)
		}
	}
	const one = "volumes:\n- {name: a, source: /s, mountpoint: /m, endpoints: [http://e]}\n"
	put("1", "volumes: []")
	path := filepath.Join(dir, "data", "f")
	r := NewReader(path)
	if f, err := r.Load(); err != nil || len(f.Volumes) != 0 {
		t.Fatal(f, err)
	}
	reload := func(want bool, volumes int) {
		t.Helper()
		f, changed, err := r.Reload()
		if changed != want || changed && (err == nil) != (volumes >= 0) || f != nil && len(f.Volumes) != volumes {
			t.Fatalf("%+v, %v, %v; want %v and %d volumes", f, changed, err, want, volumes)
		}
	}
	reload(false, 0)
	put("2", one)
	reload(false, 0)
	reload(true, 1)
	reload(false, 0)

	// Half of it.
	if err := os.WriteFile(path, []byte("volumes:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	reload(false, 0)
	if err := os.WriteFile(path, []byte(one+"# all"), 0o644); err != nil {
		t.Fatal(err)
	}
	reload(false, 0)
	reload(true, 1)

	if err := os.Remove(filepath.Join(dir, "data")); err != nil {
		t.Fatal(err)
	}
	reload(false, 0)
	reload(true, -1)
	reload(false, 0)
	put("3", "volumes: [")
	reload(false, 0)
	reload(true, -1)
	put("4", one)
	reload(false, 0)
	reload(true, 1)
}
