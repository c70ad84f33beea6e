package semantics

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// A mount that may have few descriptors serves a tree of many files, and has
// not more of them than it may.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	const allowed, dirs = 256, 10
	perDir := 300
	if longtest.For(t) > 0 {
		perDir = 500
	}
	v := lab.NewVolume(t)
	// As a daemon that may not raise its limit.
	v.Via = []string{"setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource",
		"prlimit", fmt.Sprintf("--nofile=%d:%[1]d", allowed)}
	for d := range dirs {
		if err := os.Mkdir(filepath.Join(v.Source, fmt.Sprint(d)), 0o755); err != nil {
			t.Fatal(err)
		}
		for f := range perDir {
			v.Write(fmt.Sprintf("%d/%d", d, f), fmt.Sprint(f))
		}
	}
	a := v.Mount("a")
	var l unix.Rlimit
	if err := unix.Prlimit(a.Cmd.Process.Pid, unix.RLIMIT_NOFILE, nil, &l); err != nil || l.Cur != allowed {
		t.Fatalf("the mount may have %d descriptors, %v", l.Cur, err)
	}
	for range 2 {
		found := 0
		err := filepath.WalkDir(a.Dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			if found++; found%50 == 0 {
				if err := os.WriteFile(path, []byte("written"), 0o644); err != nil {
					return err
				}
			}
			if _, err := e.Info(); err != nil {
				return err
			}
			_, err = os.ReadFile(path)
			return err
		})
		if err != nil || found != dirs*perDir {
			t.Fatalf("%d files, %v", found, err)
		}
	}
	if got := v.Read("0/0"); got != "0" && got != "written" {
		t.Errorf("a file holds %q", got)
	}
}
