package semantics

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

// networkVolume is a volume below a client of its own that calls itself kind, on which
// nothing is mounted yet.
func networkVolume(t *testing.T, kind string) (v *lab.Volume, c *lab.Client, dir string) {
	t.Helper()
	v = lab.NewVolume(t, "--embedded")
	server := v.Source
	v.Source = filepath.Join(v.Dir, "client", "source")
	if err := os.MkdirAll(v.Source, 0o755); err != nil {
		t.Fatal(err)
	}
	return v, lab.StartClient(t, server, v.Source, lab.ClientConfig{Kind: kind}), server
}

// A volume that breaks rules is refused, with a line for each option, and nothing is
// begun; accepted, it is served, and everybody is told.
func TestVolumeThatBreaksRules(t *testing.T) {
	t.Parallel()
	v, _, server := networkVolume(t, "sshfs")
	view := filepath.Join(v.Dir, "view")
	if err := os.Mkdir(view, 0o755); err != nil {
		t.Fatal(err)
	}
	finding := "sshfs at " + v.Source + ": a file with two names is two files, old names and attributes are believed: " +
		"breaks rules 6, 7, 8, 15 of docs/SEMANTICS.md: use NFS for the same directory"
	status, stdout, stderr := lab.Outcome(t, v.Command("mount", "--embedded", v.Source, view))
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if status != 1 || stdout != "" || len(lines) != 2 || !strings.Contains(lines[0], "--accept-volume") || lines[1] != finding {
		t.Errorf("exit status %d, %q, %q; want 1, and a line %q", status, stdout, stderr, finding)
	}
	if left, err := os.ReadDir(server); len(left) > 0 || err != nil {
		t.Errorf("a refused mount has made %v, %v", left, err)
	}

	m := v.MountWatched("accepted", "--accept-volume")
	lab.Eventually(t, "the log says it", func() bool {
		return m.Said("the volume breaks what lockfs promises, and was accepted") && strings.Contains(m.Log.String(), finding)
	})
	m.Has(4, "lockfs_volume_rules_broken", `accepted="true"`)
	lab.Eventually(t, "/readyz says it", func() bool {
		status, body := m.Ready()
		return status == 200 && body == "[+] default/source: ok\n[*] default/source: "+finding+" (accepted)\nready\n"
	})
	if err := os.WriteFile(m.Path("f"), []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
}

// What is mounted below SOURCE is looked at, too.
func TestVolumeBelowTheSource(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	server, below := filepath.Join(v.Dir, "server"), filepath.Join(v.Source, "sub", "below")
	for _, dir := range []string{server, below, filepath.Join(v.Dir, "view")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lab.StartClient(t, server, below, lab.ClientConfig{Kind: "sshfs"})
	status, _, stderr := lab.Outcome(t, v.Command("mount", v.Source, filepath.Join(v.Dir, "view")))
	if status != 1 || !strings.Contains(stderr, "\nsshfs at "+below+": ") {
		t.Errorf("exit status %d, %q", status, stderr)
	}
}

// Of a client that lockfs does not know it says so, and serves it.
func TestVolumeOfAnUnknownClient(t *testing.T) {
	t.Parallel()
	v, _, _ := networkVolume(t, "unheard-of")
	m := v.MountWatched("m")
	lab.Eventually(t, "the log says it", func() bool {
		return m.Said("the volume may break what lockfs promises") && strings.Contains(m.Log.String(), "check-volume")
	})
	m.Has(0, "lockfs_volume_rules_broken", `accepted="false"`)
}
