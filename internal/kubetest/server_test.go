package kubetest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
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
