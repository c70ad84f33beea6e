package semantics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A volume whose server opens no files yet is waited for, and the log says so.
func TestMountInGracePeriod(t *testing.T) {
	t.Parallel()
	grace := filepath.Join(t.TempDir(), "grace")
	v := lab.NewVolumeOverClients(t, lab.ClientConfig{Grace: grace})
	v.Endpoint()
	if err := os.WriteFile(grace, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := v.Start("a")
	lab.Eventually(t, "the log says what is waited for", func() bool {
		return strings.Contains(m.Log.String(), "waiting for the volume to open a file")
	})
	if err := os.Remove(grace); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "a is mounted", func() bool { return lab.FSType(m.Dir) == unix.FUSE_SUPER_MAGIC })
}
