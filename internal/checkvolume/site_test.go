package checkvolume

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program returns a program in the place of lockfs.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lockfs")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// The flags that a daemon's environment has are not those of a check's view.
func TestEnvironmentOfAView(t *testing.T) {
	t.Setenv("LOCKFS_SUPERVISE", "true")
	t.Setenv("LOCKFS_RULE", "** nolock")
	s := &Site{Dir: t.TempDir(), Temp: t.TempDir(), Program: program(t, "env | grep ^LOCKFS_ >&2; exit 1")}
	if err := os.Mkdir(filepath.Join(s.Dir, "lockfs-check-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	err := s.mount(t.Context(), "lockfs-check-1")
	if err == nil || strings.Count(err.Error(), "LOCKFS_") != 1 || !strings.Contains(err.Error(), "LOCKFS_STATE_DIR="+s.Temp) {
		t.Errorf("a view has %v", err)
	}
}

// The view of a check that was cut off is not the next check's.
func TestViewOfAFormerCheck(t *testing.T) {
	s := &Site{Dir: t.TempDir(), Temp: t.TempDir(), Program: program(t, "exec sleep 100")}
	for _, name := range []string{"lockfs-check-1", "lockfs-check-2"} {
		if err := os.Mkdir(filepath.Join(s.Dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_ = s.mount(ctx, "lockfs-check-1")
	former := s.done
	_ = s.mount(ctx, "lockfs-check-2")
	defer s.end(unix.SIGKILL)
	select {
	case <-former:
	default:
		t.Error("the former check's view goes on")
	}
}
