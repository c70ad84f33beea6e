package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A volume whose server opens no files yet is waited for, and the log says so.
func TestMountInGracePeriod(t *testing.T) {
	grace := filepath.Join(t.TempDir(), "grace")
	v := newVolumeOverClients(t, clientConfig{Grace: grace})
	v.endpoint()
	if err := os.WriteFile(grace, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := v.start("a")
	eventually(t, "the log says what is waited for", func() bool {
		return strings.Contains(m.log.String(), "waiting for the volume to open a file")
	})
	if err := os.Remove(grace); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a is mounted", func() bool { return fsType(m.dir) == unix.FUSE_SUPER_MAGIC })
}
