package cluster

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// lab is a cluster of integration/kubelab, made for one test.
type lab struct {
	env []string
}

// newLab starts a cluster and ends it with the test. It skips the test where
// there can be none.
func newLab(t *testing.T, nodes int) *lab {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a cluster needs root")
	}
	if _, err := os.Stat(filepath.Join(labBin(), "kubelet")); err != nil {
		t.Skip("no cluster was built: run integration/kubelab/build.sh")
	}
	state, err := os.MkdirTemp("/var/tmp", "lockfs-cluster-") // not where a node has directories of its own
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{env: []string{"KUBELAB_STATE=" + state}}
	// The cluster does not outlive the tests, should they time out.
	life, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer life.Close()
	t.Cleanup(func() {
		l.run(t, "down")
		if t.Failed() {
			_, _ = held.WriteString("keep the state")
		}
		held.Close()
		if t.Failed() {
			t.Log("logs of the cluster: " + filepath.Join(state, "logs"))
			return
		}
		if err := os.RemoveAll(state); err != nil {
			t.Error(err)
		}
	})
	up := exec.Command(l.script(), "up", strconv.Itoa(nodes))
	up.Env = append(os.Environ(), append(l.env, "KUBELAB_LIFE=3")...)
	up.ExtraFiles = []*os.File{life}
	if out, err := up.CombinedOutput(); err != nil {
		t.Fatalf("cluster.sh up: %v\n%s", err, out)
	}
	return l
}

func labBin() string {
	if dir := os.Getenv("KUBELAB_BIN"); dir != "" {
		return dir
	}
	return "/var/tmp/kubelab/bin"
}

func (l *lab) script() string { return filepath.Join(repository, "integration/kubelab/cluster.sh") }

func (l *lab) run(t *testing.T, args ...string) string {
	t.Helper()
	return run(t, l.env, l.script(), args...)
}

// loadImage makes the image of bin/lockfs known to the nodes.
func (l *lab) loadImage(t *testing.T, image string) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "lockfs")
	run(t, []string{"CGO_ENABLED=0"}, "go", "build", "-trimpath", "-o", binary, "./cmd/lockfs")
	l.run(t, "image", image, "/usr/local/bin/lockfs", binary+"=/usr/local/bin/lockfs")
	l.run(t, "load")
}

// Faults.
func (l *lab) cut(t *testing.T, node string)  { l.run(t, "cut", node) }
func (l *lab) heal(t *testing.T, node string) { l.run(t, "heal", node) }
func (l *lab) kill(t *testing.T, node string) { l.run(t, "kill", node) }

// kubectlDir is a directory with a kubectl and a helm that talk to the cluster.
func kubectlDir(t *testing.T, l *lab) string {
	t.Helper()
	dir := t.TempDir()
	for name, command := range map[string]string{"kubectl": "k", "helm": "helm"} {
		script := "#!/bin/sh\n"
		if l != nil {
			script += "export " + l.env[0] + "\nexec " + l.script() + " " + command + ` "$@"` + "\n"
		} else if path, err := exec.LookPath(name); err == nil {
			script += "exec " + path + " --kubeconfig=" + os.Getenv(envKubeconfig) + ` "$@"` + "\n"
		} else if name == "kubectl" {
			t.Fatal(err)
		} else {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
