package integration

import (
	"os"
	"path/filepath"
	"testing"
)

// volumeEnv names directories that are one network volume as two or more clients of
// it have it mounted, with commas between them. Tests then use it as their volume,
// each mount over the next of them.
const volumeEnv = "LOCKFS_TEST_VOLUME"

// onVolume has the mounts be over these clients of a volume.
func (v *volume) onVolume(paths []string) {
	v.t.Helper()
	dir, err := os.MkdirTemp(paths[0], "lfs")
	if err != nil {
		v.t.Fatal(err)
	}
	v.t.Cleanup(func() { os.RemoveAll(dir) })
	v.source, v.cached, v.by = filepath.Join(dir, "source"), true, make(map[string]string)
	for _, p := range paths {
		v.clients = append(v.clients, filepath.Join(p, filepath.Base(dir), "source"))
	}
}

// client is the directory that a mount is over.
func (v *volume) client(mount string) string {
	v.t.Helper()
	if v.clients == nil {
		return v.caching(mount)
	}
	if v.by[mount] == "" {
		v.by[mount] = v.clients[len(v.by)%len(v.clients)]
	}
	return v.by[mount]
}

// The local suite's tests of what one mount sees of another's changes, on a volume
// that somebody has mounted.
func TestVolume(t *testing.T) {
	if os.Getenv(volumeEnv) == "" {
		t.Skip("no " + volumeEnv)
	}
	for name, test := range overClients {
		t.Run(name, test)
	}
}
