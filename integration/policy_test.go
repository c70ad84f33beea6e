package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// All mounts of a volume have one policy. It is changed on purpose, and only
// while nobody has the volume mounted.
func TestPolicyMismatch(t *testing.T) {
	v := newVolume(t)
	rules := filepath.Join(v.dir, "rules")
	if err := os.WriteFile(rules, []byte("*.tmp nolock # scratch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(says string, args ...string) {
		t.Helper()
		m := v.start("refused", args...)
		<-m.done
		log := strings.TrimSpace(m.log.String())
		last := log[strings.LastIndexByte(log, '\n')+1:]
		if status := m.cmd.ProcessState.ExitCode(); status != 1 || !strings.HasPrefix(last, "lockfs: ") || !strings.Contains(last, says) {
			t.Errorf("mount %q: exit status %d, %s; want 1 and a line with %q", args, status, last, says)
		}
	}
	a := v.mount("a")
	refused("--set-policy", "--policy", rules)
	refused(a.dir+" on a", "--policy", rules, "--set-policy")
	a.stop()
	refused("--set-policy", "--policy", rules)

	a = v.mount("a", "--policy", rules, "--set-policy")
	v.mount("b", "--rule", "**/*.tmp   nolock", "--set-policy")
	refused("(no rules)")
	refused("with two policies", "--rule", "*.tmp readonly")
	if status := a.stop(); status != 0 || !strings.Contains(a.log.String(), "matched nothing") {
		t.Errorf("exit status %d, and no word of the rule that matched nothing:\n%s", status, a.log)
	}
}
