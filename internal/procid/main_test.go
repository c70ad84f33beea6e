package procid

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// childEnv makes a copy of the test program a child of startChild.
const childEnv = "PROCID_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Stdout.Write([]byte{'\n'})
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startChild runs a process that calls itself name, until the test ends.
func startChild(tb testing.TB, name string) *exec.Cmd {
	tb.Helper()
	self, err := os.Executable()
	if err != nil {
		tb.Fatal(err)
	}
	program := filepath.Join(tb.TempDir(), name)
	if err := os.Symlink(self, program); err != nil {
		tb.Fatal(err)
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childEnv+"=1")
	if _, err := cmd.StdinPipe(); err != nil {
		tb.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := io.ReadFull(stdout, make([]byte, 1)); err != nil {
		tb.Fatal(err)
	}
	return cmd
}
