package kubetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Programs that are only half built are an error that names what is missing.
func TestMissingProgram(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("KUBELAB_BIN", bin)
	t.Setenv("KUBECONFIG", "")
	if err := os.WriteFile(filepath.Join(bin, "kube-apiserver"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Start: %v", err)
	}
}

// A program that ends by itself is not waited for: it is started again with other ports, and then
// its end is the error.
func TestProgramEnds(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("KUBELAB_BIN", bin)
	t.Setenv("KUBECONFIG", "")
	started := filepath.Join(bin, "started")
	for name, script := range map[string]string{
		"etcd":           "#!/bin/sh\nexec sleep 1000\n",
		"kube-apiserver": "#!/bin/sh\necho \"$@\" >>" + started + "\necho no port for me\nexit 1\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Start(); !errors.Is(err, errEnded) || !strings.Contains(err.Error(), "no port for me") {
		t.Errorf("Start: %v", err)
	}
	text, err := os.ReadFile(started)
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(text)))
	if len(lines) != 3 || lines[0] == lines[1] {
		t.Errorf("it was started by %q", lines)
	}
}
