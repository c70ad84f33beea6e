package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The volumes of 'lockfs serve' are looked at, and locked, by its own
// configuration: in the view, in the directory below it, and by name.
func TestCommandsByConfiguration(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	const rules = ` policy: ["*.log nolock"],`
	n.list("v" + rules)
	n.start()
	n.ready(200)
	a := lab.NewAgent(t)
	a.Open(filepath.Join(n.view("v"), "f"), unix.O_CREAT|unix.O_WRONLY)
	run := func(args ...string) (string, error) {
		out, err := n.Vol.Command(args...).CombinedOutput()
		return string(out), err
	}
	for _, args := range [][]string{{n.view("v")}, {filepath.Join(n.source("v"), "f")}, {"--name", "v", "f"}} {
		out, err := run(append([]string{"ls", "--config", n.config}, args...)...)
		if err != nil || !strings.Contains(out, "held") {
			t.Errorf("lockfs ls %q: %v: %s", args, err, out)
		}
	}
	if out, err := run("ls", n.view("v")); err == nil || !strings.Contains(out, "--config") {
		t.Errorf("without the configuration: %v: %s", err, out)
	}
	exec := func(path string, args ...string) (string, error) {
		args = append(args, filepath.Join(n.view("v"), path), "--", "sh", "-c", "echo under $LOCKFS_TOKEN")
		return run(append([]string{"exec", "--config", n.config}, args...)...)
	}
	if out, err := exec("job"); err != nil || !strings.HasPrefix(out, "under ") {
		t.Errorf("lockfs exec: %v: %s", err, out)
	}
	if out, err := exec("f", "--wait", "0"); err == nil || strings.Contains(out, "under") {
		t.Errorf("lockfs exec of what is held: %v: %s", err, out)
	}
	if out, err := exec("x.log"); err == nil || !strings.Contains(out, "needs no lock") {
		t.Errorf("lockfs exec of what needs no lock: %v: %s", err, out)
	}
	if out, err := exec("job", "--rule", "*.log nolock"); err == nil || !strings.Contains(out, "drop --policy and --rule") {
		t.Errorf("lockfs exec with two policies: %v: %s", err, out)
	}
	if out, err := run("break", "--config", n.config, "--reason", "test", filepath.Join(n.view("v"), "f")); err != nil {
		t.Errorf("lockfs break: %v: %s", err, out)
	}
	if err := os.WriteFile(n.config, []byte("volumes: []\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run("ls", "--config", n.config, "--name", "v", "f"); err == nil || !strings.Contains(out, "does not list the volume default/v") {
		t.Errorf("of a volume that is not listed: %v: %s", err, out)
	}
}
