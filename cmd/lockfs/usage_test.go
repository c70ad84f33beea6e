package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// said runs a command that starts nothing.
func said(t *testing.T, args ...string) (status int, stdout, message string) {
	t.Helper()
	root := newRoot()
	describeCompletion(root)
	var out bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	switch {
	case err == nil:
		return 0, out.String(), ""
	case errors.As(err, new(usageError)):
		return exitUsage, out.String(), err.Error()
	}
	return exitFailure, out.String(), err.Error()
}

// The help of a command has its own words, and no flags that it does not have.
func TestHelpTexts(t *testing.T) {
	for _, c := range []struct{ args, has, lacks string }{
		{"--help", "completes commands in a shell", "Generate the autocompletion"},
		{"help", "\n  help          Say more about a command", "Help about any command"},
		{"help ls", "(default: that of PATH)", "last part of SOURCE"},
		{"help move", "(default: that of SOURCE)", "an embedded etcd"},
		{"help mount", "(default: the last part of SOURCE)", "that of PATH"},
		{"cleanup --help", "\n  lockfs cleanup [DIR...]\n", "[flags]"},
		{"version --help", "\n  lockfs version\n", "[flags]"},
	} {
		status, out, message := said(t, strings.Fields(c.args)...)
		if out := strings.Join(strings.Fields(out), " "); status != 0 || !strings.Contains(out, strings.Join(strings.Fields(c.has), " ")) || strings.Contains(out, c.lacks) {
			t.Errorf("lockfs %s: status %d, %s%s", c.args, status, out, message)
		}
	}
}
