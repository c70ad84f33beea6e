package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// An OCI layout has an image for each architecture, and whatever is named is there with its digest.
func TestOCI(t *testing.T) {
	root := t.TempDir()
	for arch, code := range map[string]string{"amd64": "code", "arm64": "other code"} {
		if err := os.WriteFile(filepath.Join(root, "program-"+arch), []byte(code), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var out, again bytes.Buffer
	for _, w := range []io.Writer{&out, &again} {
		if err := writeOCI(w, "host:5000/example/a:1", "/bin/program", []string{"amd64", "arm64"}, []string{root + "/program-ARCH=/bin/program"}); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Error("the same files made another image")
	}
	files := untar(t, out.Bytes())
	blob := func(d descriptor) []byte {
		t.Helper()
		content := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if sum := fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))); sum != d.Digest || len(content) != d.Size {
			t.Fatalf("%+v is %s, %d bytes", d, sum, len(content))
		}
		return []byte(content)
	}
	read := func(b []byte) (v struct {
		Manifests, Layers []descriptor
		Config            descriptor
	}) {
		t.Helper()
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	top := read([]byte(files["index.json"]))
	if a := top.Manifests[0].Annotations; len(top.Manifests) != 1 || a["org.opencontainers.image.ref.name"] != "1" || a["io.containerd.image.name"] != "host:5000/example/a:1" {
		t.Fatalf("%+v", top)
	}
	index := read(blob(top.Manifests[0]))
	for i, want := range []struct{ arch, code string }{{"amd64", "code"}, {"arm64", "other code"}} {
		d := index.Manifests[i]
		if *d.Platform != (platform{want.arch, "linux"}) {
			t.Errorf("%+v", d.Platform)
		}
		m := read(blob(d))
		z, err := gzip.NewReader(bytes.NewReader(blob(m.Layers[0])))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if got := untar(t, layer)["bin/program"]; got != want.code {
			t.Errorf("%s: %q", want.arch, got)
		}
		var config struct {
			Architecture string
			Rootfs       struct {
				DiffIDs []string `json:"diff_ids"`
			}
		}
		if err := json.Unmarshal(blob(m.Config), &config); err != nil {
			t.Fatal(err)
		}
		if config.Architecture != want.arch || config.Rootfs.DiffIDs[0] != fmt.Sprintf("sha256:%x", sha256.Sum256(layer)) {
			t.Errorf("%+v", config)
		}
	}
}

// The Dockerfile's last stage makes what mkimage makes of the same program: one file, and how it is run.
func TestLikeDocker(t *testing.T) {
	text, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	var stage []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "FROM ") {
			stage = nil
		}
		stage = append(stage, line)
	}
	const dest = "/usr/local/bin/lockfs"
	if want := []string{"FROM scratch", "COPY --from=build /src/bin/lockfs " + dest, `ENTRYPOINT ["` + dest + `"]`}; !slices.Equal(stage, want) {
		t.Errorf("the last stage is %q, want %q", stage, want)
	}
	program := filepath.Join(t.TempDir(), "lockfs")
	if err := os.WriteFile(program, []byte("code"), 0o755); err != nil {
		t.Fatal(err)
	}
	layer, err := newLayer([]string{program + "=" + dest})
	if err != nil {
		t.Fatal(err)
	}
	files := untar(t, layer)
	if files["usr/local/bin/lockfs"] != "code" || len(files) != 4 { // the directories above it too
		t.Errorf("mkimage's layer has %q", files)
	}
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(makefile), dest+" bin/lockfs="+dest) {
		t.Error("the Makefile makes another image")
	}
}
