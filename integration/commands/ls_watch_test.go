package commands

import (
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// 'lockfs ls --watch' shows who comes and goes, until it is told to end.
func TestListWatch(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	cmd := v.Command("ls", "--watch", "-o", "json", a.Dir)
	out := &lab.LogBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	shows := func(what string) {
		t.Helper()
		lab.Eventually(t, "it lists "+what, func() bool {
			lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
			var es []lab.Entry
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
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	shows("f held a")
	waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	shows("f held a, f waiting b")
	holder.Must(lab.Call{Op: "close", FD: fd})
	shows("f held b")
	if err := cmd.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("it ends with %v", err)
	}
}
