package main

import (
	"os"
	"os/exec"
	"testing"
)

// The end of the program that reads the log, such as tee, is not the daemon's.
func TestLogWithoutReader(t *testing.T) {
	const child = "TEST_LOG_WITHOUT_READER"
	if os.Getenv(child) != "" {
		l := newLogFlags()
		l.logger().Info("nobody reads this")
		return
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestLogWithoutReader$")
	cmd.Env = append(os.Environ(), child+"=1")
	cmd.Stderr = w
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
}
