package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
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

// A usage error says what to give, before anything is started.
func TestUsageErrors(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	none, file := filepath.Join(dir, "none"), filepath.Join(dir, "lockfs.yaml")
	t.Setenv("LOCKFS_STATE_DIR", dir)
	t.Setenv("KUBECONFIG", "")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	volumes := "volumes:\n- name: v\n  source: /s\n  mountpoint: /m\n  endpoints: [http://127.0.0.1:1]\n  credentials: team\n"
	if err := os.WriteFile(file, []byte(volumes), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		says   string
	}{
		{"mount", 2, "want SOURCE MOUNTPOINT; see 'lockfs mount --help'"},
		{"mount a", 2, "want SOURCE MOUNTPOINT"},
		{"ls a b", 2, "want at most one PATH"},
		{"break", 2, "want one PATH"},
		{"move", 2, "want one SOURCE"},
		{"mount NONE DIR", 1, "SOURCE NONE: no such file or directory"}, // its volume may not be mounted yet
		{"mount FILE DIR", 2, "SOURCE FILE: not a directory"},
		{"serve /etc/x", 2, "want no argument: give the file by --config"},
		{"csi /etc/x", 2, "want no argument: give the file by --config"},
		{"version x", 2, "want no argument"},
		{"check-volume", 2, "want two directories"},
		{"help mout", 2, `unknown command "mout"`},
		{"help mount x", 2, `unknown command "mount x"`},
		{"mout DIR DIR", 2, `unknown command "mout" (similar: mount, move); see 'lockfs --help'`},
		{"foobar", 2, `unknown command "foobar"; see 'lockfs --help'`},
		{"completion", 2, "want a shell: bash, fish, powershell or zsh"},
		{"completion tcsh", 2, "want a shell: bash, fish, powershell or zsh"},
		{"mount --ttl soon DIR DIR", 2, `--ttl "soon": want a duration such as 500ms, 30s or 5m; see 'lockfs mount --help'`},
		{"mount --wait soon DIR DIR", 2, `--wait "soon": want a duration such as 30s or 5m, 0 (refuse at once) or -1 (for ever)`},
		{"mount --read-locks=maybe DIR DIR", 2, `--read-locks "maybe": want true or false`},
		{"mount --kube-burst many DIR DIR", 2, `--kube-burst "many": want a number`},
		{"mount --scope galaxy DIR DIR", 2, `--scope "galaxy": want one of auto|`},
		{"csi --config FILE --endpoint tcp://127.0.0.1:1", 2, "--endpoint tcp://127.0.0.1:1: want unix:///path/of/a/socket"},
		{"csi --config FILE --endpoint unix://csi.sock", 2, "--endpoint unix://csi.sock: want unix:///path/of/a/socket"},
		{"cleanup FILE", 2, "DIR FILE: not a directory"},
		{"check-volume NONE DIR", 2, "DIR NONE: no such file or directory"},
		{"ls --config NONE DIR", 2, "--config: open NONE"},
		{"mount --http 9808 DIR DIR", 2, "--http 9808: want HOST:PORT or :PORT, such as :9808"},
		{"serve --http :http! --config FILE", 2, "--http :http!: want HOST:PORT"},
		{"check-volume --listen foo DIR", 2, "--listen foo: want HOST:PORT"},
		{"check-volume --peer foo DIR", 2, "--peer foo: want HOST:PORT"},
		{"check-volume --peer 127.0.0.1:1 DIR", 1, "no check answers at 127.0.0.1:1: run 'lockfs check-volume --listen 127.0.0.1:1 DIR' on the other machine first"},
		{"check-volume DIR DIR/.", 2, "DIR and DIR2 are both DIR: mount the volume twice"},
		{"mount --endpoints foo://127.0.0.1:1 DIR DIR", 2, `--endpoints: "foo://127.0.0.1:1" is not the URL of an etcd`},
		{"ls --endpoints foo://127.0.0.1:1", 2, `--endpoints: "foo://127.0.0.1:1" is not the URL of an etcd`},
		{"mount --endpoints http://127.0.0.1:1 --cacert NONE DIR DIR", 1, "--cacert: stat NONE"},
		{"mount --endpoints http://127.0.0.1:1 --user u --password-file NONE DIR DIR", 1, "--password-file: stat NONE"},
		{"ls --backend kubernetes --kubeconfig NONE --name v DIR", 2, "--kubeconfig: stat NONE"},
		{"ls --backend kubernetes --name v DIR", 2, "neither --kubeconfig nor $KUBECONFIG names a file"},
		{"ls --kubeconfig NONE DIR", 2, "--kubeconfig is for --backend kubernetes"},
		{"mount --kube-qps 7 DIR DIR", 2, "--kube-qps is for --backend kubernetes"},
		{"mount --pod-names --kube-burst 7 DIR DIR", 2, "--kube-burst is for --backend kubernetes"},
		{"serve --config NONE", 2, "--config: open NONE"},
		{"serve --config FILE --http 127.0.0.1:0", 2, "--credentials-dir is required: the volume default/v has credentials team in FILE"},
		{"ls --config FILE --name v DIR", 2, "--credentials-dir is required"},
		{"move DIR", 2, "--to is required: KIND/ID of the lock service"},
		{"move DIR --to etcd/abc", 2, `"abc" is no UUID`},
		{"break DIR --reason x --timeout -1s", 2, "--timeout -1s: want a positive duration, or 0 for the TTL"},
	} {
		args := strings.NewReplacer("DIR", dir, "NONE", none, "FILE", file)
		says := strings.NewReplacer("both DIR", "both "+dir, "NONE", none, "FILE", file).Replace(c.says)
		given := strings.Fields(c.args)
		for i, arg := range given {
			given[i] = args.Replace(arg)
		}
		status, _, message := said(t, given...)
		if status != c.status || !strings.Contains(message, says) || strings.Contains(message, "\n") {
			t.Errorf("lockfs %s: status %d, %q; want %d and one line with %q", c.args, status, message, c.status, says)
		}
	}
	t.Setenv("LOCKFS_TTL", "soon")
	if status, _, message := said(t, "mount", dir, dir); status != 2 || message != `$LOCKFS_TTL "soon": want a duration such as 500ms, 30s or 5m` {
		t.Errorf("a wrong variable: status %d, %q", status, message)
	}
	t.Setenv("LOCKFS_TTL", "")
	t.Setenv("LOCKFS_STATE_DIR", "relative")
	if status, _, message := said(t, "mount", dir, dir); status != 2 || !strings.Contains(message, "LOCKFS_STATE_DIR") {
		t.Errorf("a relative state directory: status %d, %q", status, message)
	}
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

// A mistyped directory is told of. It has nothing left, all the same.
func TestCleanupOfNothing(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	if status, out, message := said(t, "cleanup", none); status != 0 || out != none+": no such directory\n" {
		t.Errorf("status %d, %q, %s", status, out, message)
	}
}
