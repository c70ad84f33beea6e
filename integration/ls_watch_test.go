package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// 'lockfs ls --watch' shows who comes and goes, until it is told to end.
func TestListWatch(t *testing.T) {
	v := newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	cmd := v.command("ls", "--watch", "-o", "json", a.dir)
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	shows := func(what string) {
		t.Helper()
		eventually(t, "it lists "+what, func() bool {
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			var es []entry
			if json.Unmarshal([]byte(lines[len(lines)-1]), &es) != nil {
				return false
			}
			var got []string
			for _, e := range es {
				got = append(got, e.Path+" "+e.State+" "+e.Node)
			}
			return strings.Join(got, ", ") == what
		})
	}
	shows("")
	holder, waiter := newAgent(t), newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	shows("f held a")
	waiter.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
	shows("f held a, f waiting b")
	holder.must(call{Op: "close", FD: fd})
	shows("f held b")
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}
