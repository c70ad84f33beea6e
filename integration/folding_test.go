package integration

import (
	"os"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A folding backing takes several names for one, as vfat, CIFS or ZFS may.
type foldingFS struct {
	*cachingFS
	fold func(string) string
}

func (f *foldingFS) Lookup(cancel <-chan struct{}, in *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return f.cachingFS.Lookup(cancel, in, f.fold(name), out)
}

func (f *foldingFS) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	return f.cachingFS.Create(cancel, in, f.fold(name), out)
}

func (f *foldingFS) Unlink(cancel <-chan struct{}, in *fuse.InHeader, name string) fuse.Status {
	return f.cachingFS.Unlink(cancel, in, f.fold(name))
}

func (f *foldingFS) Rename(cancel <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return f.cachingFS.Rename(cancel, in, f.fold(from), f.fold(to))
}

// folding mounts one over the volume's directory, until the test ends.
func (v *volume) folding(fold func(string) string) {
	v.t.Helper()
	below, err := newCachingFS(clientConfig{Source: v.source})
	if err != nil {
		v.t.Fatal(err)
	}
	server, err := fuse.NewServer(&foldingFS{below, fold}, v.source, &fuse.MountOptions{Name: "lockfs-test", FsName: "folding", DisableReadDirPlus: true})
	if err != nil {
		v.t.Fatal(err)
	}
	go server.Serve()
	v.t.Cleanup(func() {
		if err := unix.Unmount(v.source, unix.MNT_DETACH); err != nil {
			v.t.Error(err)
		}
		server.Wait()
	})
	if err := server.WaitMount(); err != nil {
		v.t.Fatal(err)
	}
}

// Where two names are of one file, each would have a lock of its own, and two programs
// would write to it: such a directory is refused, and left as it was.
func TestFoldedNames(t *testing.T) {
	for says, fold := range map[string]func(string) string{
		`"file" and "FILE"`:      strings.ToLower,
		`"\u00e9" and "e\u0301"`: strings.NewReplacer("e\u0301", "\u00e9").Replace,
		"":                       strings.Clone,
	} {
		t.Run(says, func(t *testing.T) {
			v := newVolume(t, "--embedded")
			v.folding(fold)
			if says == "" {
				v.mount("a")
				return
			}
			m := v.refused()
			lines := strings.Split(strings.TrimSpace(m.log.String()), "\n")
			if status := m.cmd.ProcessState.ExitCode(); status != 2 || !strings.Contains(lines[len(lines)-1], says) {
				t.Errorf("exit status %d, %s; want 2 and %s", status, m.log, says)
			}
			if left, err := os.ReadDir(v.source); err != nil || len(left) != 0 {
				t.Errorf("it holds %v, %v", left, err)
			}
		})
	}
}
