package commands

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// An etcd with TLS and users: a mount that has what it takes locks, and one that
// has not is told what is missing.
func TestSecureEtcd(t *testing.T) {
	t.Parallel()
	p := lab.NewPKI(t)
	endpoint := lab.NewSecureEtcd(t, p)
	v := lab.NewVolume(t, "--endpoints", endpoint, "--cacert", p.CA, "--cert", p.Cert, "--key", p.Key, "--namespace", "team", "--ttl", "15s")
	v.Env = append(v.Env, "LOCKFS_USER=team", "LOCKFS_PASSWORD=secret")
	a, b := v.Mount("a"), v.Mount("b")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	other.Fails(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	status, stdout, stderr := lab.Outcome(t, v.Command("ls", "--endpoints", endpoint, "--cacert", p.CA, "--cert", p.Cert, "--key", p.Key, a.Dir))
	if status != 0 || !strings.Contains(stdout, " held ") {
		t.Errorf("ls: %d %q %q", status, stdout, stderr)
	}
	holder.Must(lab.Call{Op: "close", FD: fd})

	mnt := filepath.Join(v.Dir, "c")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	tlsFlags := []string{"--cacert", p.CA, "--cert", p.Cert, "--key", p.Key}
	for name, c := range map[string]struct {
		env   string
		flags []string
		says  string
	}{
		"wrong password":    {"LOCKFS_PASSWORD=wrong", tlsFlags, "authentication failed"},
		"no certificate":    {"", []string{"--cacert", p.CA}, endpoint}, // TLS 1.3: the server hangs up, most often without a word
		"unknown CA":        {"", nil, "certificate"},
		"another namespace": {"", append([]string{"--namespace", "others"}, tlsFlags...), "permission denied"},
	} {
		args := append([]string{"mount", "--namespace", "team", "--endpoints", endpoint}, c.flags...)
		source := v.Source
		if name == "another namespace" {
			source = t.TempDir()
		}
		var status int
		var stderr string
		lab.Eventually(t, name+": the lock service answers in time", func() bool {
			cmd := v.Command(append(args, source, mnt)...)
			cmd.Env = append(cmd.Env, c.env)
			status, _, stderr = lab.Outcome(t, cmd)
			return strings.Contains(stderr, c.says) || !strings.Contains(stderr, "context deadline exceeded")
		})
		if status != 1 || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: exit status %d, %q; want 1 and %q", name, status, stderr, c.says)
		}
	}
}
