package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

func untar(t *testing.T, b []byte) map[string]string {
	t.Helper()
	files := make(map[string]string)
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(content) + h.Linkname
	}
}

func TestImage(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "program"), []byte("code"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("program", filepath.Join(root, "alias")); err != nil {
		t.Fatal(err)
	}
	var out, again bytes.Buffer
	for _, w := range []io.Writer{&out, &again} {
		if err := write(w, "example/a:1", "/bin/program", "amd64", []string{root + "=/bin", filepath.Join(root, "alias") + "=/other"}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same files made another image")
	}
	image := untar(t, out.Bytes())
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal([]byte(image["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if m := manifest[0]; len(m.Layers) != 1 || image[m.Config] == "" || m.RepoTags[0] != "example/a:1" {
		t.Fatalf("manifest %+v", m)
	}
	files := untar(t, []byte(image[manifest[0].Layers[0]]))
	want := map[string]string{"bin/": "", "bin/program": "code", "bin/alias": "program", "other": "code"}
	if len(files) != len(want) {
		t.Errorf("the layer has %q", files)
	}
	for name, content := range want {
		if got, ok := files[name]; !ok || got != content {
			t.Errorf("%s is %q, want %q", name, got, content)
		}
	}
}

func TestFailedImageIsRemoved(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.tar")
	if err := run(out, "a:1", "/a", "amd64", []string{"/no/such/file=/a"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want that the file does not exist", err)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Error("it left half an image")
	}
}
