package lab

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"unsafe"
)

// Outcome runs lockfs to its end and returns exit status, output and errors.
func Outcome(t *testing.T, cmd *exec.Cmd) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// Output runs a program that has to succeed, and returns what it prints.
func Output(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Everywhere runs job once for each of n workers on each mount, all at once.
func Everywhere(n int, job func(m *Mount, worker int), mounts ...*Mount) {
	var wg sync.WaitGroup
	for _, m := range mounts {
		for i := range n {
			wg.Go(func() { job(m, i) })
		}
	}
	wg.Wait()
}

// Run runs a program to its end.
func Run(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Errorf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// Aligned is a buffer that O_DIRECT takes.
func Aligned(n int) []byte {
	const to = 4096
	buf := make([]byte, n+to)
	skip := to - int(uintptr(unsafe.Pointer(&buf[0]))%to)
	return buf[skip : skip+n]
}
