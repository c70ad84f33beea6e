package integration

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// networkVolume is a volume below a client of its own that calls itself kind, on which
// nothing is mounted yet.
func networkVolume(t *testing.T, kind string) (v *volume, c *netClient, dir string) {
	t.Helper()
	v = newVolume(t, "--embedded")
	server := v.source
	v.source = filepath.Join(v.dir, "client", "source")
	if err := os.MkdirAll(v.source, 0o755); err != nil {
		t.Fatal(err)
	}
	return v, startClient(t, server, v.source, clientConfig{Kind: kind}), server
}

// ready is what /readyz of a mount answers.
func (w *watched) ready() (status int, body string) {
	w.t.Helper()
	resp, err := http.Get(strings.TrimSuffix(w.url, "metrics") + "readyz")
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// A volume that breaks rules is refused, with a line for each option, and nothing is
// begun; accepted, it is served, and everybody is told.
func TestVolumeThatBreaksRules(t *testing.T) {
	v, _, server := networkVolume(t, "sshfs")
	view := filepath.Join(v.dir, "view")
	if err := os.Mkdir(view, 0o755); err != nil {
		t.Fatal(err)
	}
	finding := "sshfs at " + v.source + ": a file with two names is two files, old names and attributes are believed: " +
		"breaks rules 6, 7, 8, 15 of docs/SEMANTICS.md: use NFS for the same directory"
	status, stdout, stderr := outcome(t, v.command("mount", "--embedded", v.source, view))
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	if status != 1 || stdout != "" || len(lines) != 2 || !strings.Contains(lines[0], "--accept-volume") || lines[1] != finding {
		t.Errorf("exit status %d, %q, %q; want 1, and a line %q", status, stdout, stderr, finding)
	}
	if left, err := os.ReadDir(server); len(left) > 0 || err != nil {
		t.Errorf("a refused mount has made %v, %v", left, err)
	}

	m := v.mountWatched("accepted", "--accept-volume")
	if !m.said("the volume breaks what lockfs promises, and was accepted") || !strings.Contains(m.log.String(), finding) {
		t.Errorf("the log does not say it:\n%s", m.log)
	}
	m.has(4, "lockfs_volume_rules_broken", `accepted="true"`)
	if status, body := m.ready(); status != 200 || body != "[+] default/source: ok\n[*] default/source: "+finding+" (accepted)\nready\n" {
		t.Errorf("/readyz: %d %q", status, body)
	}
	if err := os.WriteFile(m.path("f"), []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
}

// What is mounted below SOURCE is looked at, too.
func TestVolumeBelowTheSource(t *testing.T) {
	v := newVolume(t)
	server, below := filepath.Join(v.dir, "server"), filepath.Join(v.source, "sub", "below")
	for _, dir := range []string{server, below, filepath.Join(v.dir, "view")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	startClient(t, server, below, clientConfig{Kind: "sshfs"})
	status, _, stderr := outcome(t, v.command("mount", v.source, filepath.Join(v.dir, "view")))
	if status != 1 || !strings.Contains(stderr, "\nsshfs at "+below+": ") {
		t.Errorf("exit status %d, %q", status, stderr)
	}
}

// Of a client that lockfs does not know it says so, and serves it.
func TestVolumeOfAnUnknownClient(t *testing.T) {
	v, _, _ := networkVolume(t, "unheard-of")
	m := v.mountWatched("m")
	if !m.said("the volume may break what lockfs promises") || !strings.Contains(m.log.String(), "check-volume") {
		t.Errorf("the log does not say it:\n%s", m.log)
	}
	m.has(0, "lockfs_volume_rules_broken", `accepted="false"`)
}
