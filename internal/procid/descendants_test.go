package procid

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Children and theirs are found, those too that lead a session of their own.
func TestDescendants(t *testing.T) {
	cmd := exec.Command("sh", "-c", "setsid sh -c 'echo $$; exec sleep 1000' & wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pid := range []int{grandchild, cmd.Process.Pid} {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = cmd.Wait()
	})
	found, err := Proc{}.Descendants(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{cmd.Process.Pid, grandchild} {
		if !slices.Contains(found, pid) {
			t.Errorf("%d is not among %v", pid, found)
		}
	}
	if slices.Contains(found, os.Getpid()) || slices.Contains(found, 1) {
		t.Errorf("not ours: %v", found)
	}
}
