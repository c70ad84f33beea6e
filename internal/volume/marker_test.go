package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

func TestMarkerThatIsNone(t *testing.T) {
	write := func(content string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(content), 0o644) }
	}
	good := string(identity{Format: format, ID: uuid.New(), Namespace: "default", Name: "data"}.encode())
	tests := map[string]func(path string) error{
		"empty":       write(""),
		"truncated":   write(good[:len(good)/2]),
		"foreign":     write("this directory belongs to me\n"),
		"no format":   write(`{}`),
		"no id":       write(`{"format":1,"namespace":"default","name":"data"}`),
		"bad id":      write(`{"format":1,"id":"x"}`),
		"huge":        write(`{"format":1` + strings.Repeat(" ", maxMarker) + good[1:]),
		"newer":       write(`{"format":6,"id":7}`),
		"a directory": func(path string) error { return os.Mkdir(path, 0o755) },
		"a link":      func(path string) error { return os.Symlink("/etc/passwd", path) },
		"a fifo":      func(path string) error { return unix.Mkfifo(path, 0o644) },
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			source := t.TempDir()
			if err := create(filepath.Join(source, MarkerName)); err != nil {
				t.Fatal(err)
			}
			store := &memStore{}
			_, err := Check(t.Context(), config(source, store))
			var ie *InvalidError
			if !errors.As(err, &ie) || errors.Is(err, ErrNewer) != (name == "newer") {
				t.Fatalf("Check = %v, want an *InvalidError", err)
			}
			t.Log(err)
			if store.record != nil {
				t.Errorf("a record was put: %s", store.record)
			}
		})
	}
}

func TestNoReplace(t *testing.T) {
	for name, rename := range map[string]func(from, to string) error{"rename": renameNoReplace, "link": linkNoReplace} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			a, b, to := filepath.Join(dir, "a"), filepath.Join(dir, "b"), filepath.Join(dir, "to")
			for _, path := range []string{a, b} {
				if err := os.WriteFile(path, []byte(path), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := rename(a, to); err != nil {
				t.Fatal(err)
			}
			if err := rename(b, to); !errors.Is(err, fs.ErrExist) {
				t.Errorf("over an existing file: %v, want ErrExist", err)
			}
			if got, err := os.ReadFile(to); string(got) != a || err != nil {
				t.Errorf("it has %q, %v", got, err)
			}
			if _, err := os.Lstat(a); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the old name: %v", err)
			}
		})
	}
}

func TestRemoveMarkerOfAnother(t *testing.T) {
	cfg := config(t.TempDir(), &memStore{})
	mustCheck(t, cfg)
	if err := removeMarker(cfg.Source, identity{ID: uuid.New()}); err != nil {
		t.Fatal(err)
	}
	if _, err := readMarker(cfg.Source); err != nil {
		t.Errorf("another mount's marker is gone: %v", err)
	}
}

func TestIsMarker(t *testing.T) {
	for name, want := range map[string]bool{
		MarkerName:                           true,
		MarkerName + "." + uuid.Nil.String(): true,
		MarkerName + "s":                     false,
		"lockfs-volume":                      false,
		"sub/" + MarkerName:                  false,
	} {
		if IsMarker(name) != want {
			t.Errorf("IsMarker(%q) = %v", name, !want)
		}
	}
}

func TestValidateName(t *testing.T) {
	for _, s := range []string{"data", "a b", "daten-ä", "...", "-", strings.Repeat("x", maxName)} {
		if err := ValidateName("name", s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for s, says := range map[string]string{
		"":                             "is empty",
		".":                            "stands for",
		"..":                           "stands for",
		"a/b":                          "'/'",
		"a\x00b":                       "cannot be printed",
		"a\nb":                         "cannot be printed",
		"a\x7f":                        "cannot be printed",
		"a\u202eb":                     "cannot be printed", // right-to-left override
		"\xff":                         "UTF-8",
		strings.Repeat("x", maxName+1): "254 bytes",
	} {
		err := ValidateName("namespace", s)
		if !errors.Is(err, ErrName) || !strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "namespace") {
			t.Errorf("%q: %v, want %q in it", s, err, says)
		}
	}
}
