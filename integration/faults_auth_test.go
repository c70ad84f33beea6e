package integration

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"
)

// newSecured starts a cluster that asks everybody who he is.
func newSecured(t *testing.T, change ...func(*memberConfig)) *cluster {
	t.Helper()
	c := newCluster(t, change...)
	ctx := t.Context()
	for i, err := range []error{
		c.user("root", "toor"),
		second(c.client.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatalf("step %d: %v", i, err)
		}
	}
	c.client = c.dial(clientv3.Config{Username: "root", Password: "toor"})
	return c
}

func second[T any](_ T, err error) error { return err }

// user makes a user with a role of the same name, which may use what is below prefixes.
func (c *cluster) user(name, password string, prefixes ...string) error {
	ctx := c.t.Context()
	errs := []error{
		second(c.client.UserAdd(ctx, name, password)),
		second(c.client.RoleAdd(ctx, name)),
		second(c.client.UserGrantRole(ctx, name, name)),
	}
	for _, p := range prefixes {
		errs = append(errs, grantPrefix(c.client, name, p))
	}
	return errors.Join(errs...)
}

// newTeam is newTrial with a user of its own, who may use its name space only.
func (c *cluster) newTeam(t *testing.T, args ...string) *trial {
	t.Helper()
	tr := newTrial(t, c, args...)
	if err := c.user(tr.namespace(), "secret", "/locks/"+tr.namespace()+"/", "/lockfs/"+tr.namespace()+"/"); err != nil {
		t.Fatal(err)
	}
	tr.env = append(tr.env, "LOCKFS_USER="+tr.namespace(), "LOCKFS_PASSWORD=secret")
	return tr
}

// refused runs a mount of another directory that must be refused with one line
// that says why.
func (tr *trial) refused(env []string, says ...string) {
	tr.t.Helper()
	cmd := tr.command("mount", "--name", "v", tr.t.TempDir(), tr.t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	timer := time.AfterFunc(callTimeout, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	defer timer.Stop()
	status, _, stderr := outcome(tr.t, cmd)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := lines[len(lines)-1]
	for _, s := range says {
		if status != 1 || !strings.Contains(last, s) {
			tr.t.Errorf("exit status %d, %q; want 1, and one line with %q", status, stderr, s)
		}
	}
	tr.t.Logf("refused: %s", last)
}

// A user with a role for one name space does all that lockfs does there, and
// nothing in another.
func TestRoleOfOneNamespace(t *testing.T) {
	c := newSecured(t)
	tr := c.newTeam(t, "--wait", "-1")
	a, b := tr.mount("a"), tr.mount("b")
	tr.work(a, 2)
	tr.work(b, 2)
	tr.goesOn("with a role of its own")
	for _, w := range tr.of(b) {
		w.kill()
		w.ended = true
	}
	b.kill()
	b = tr.mount("b") // ends the session of the dead one
	tr.work(b, 1)
	tr.goesOn("with a successor")
	tr.finish()

	holder := newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	held := tr.ls()[0]
	lease, err := strconv.ParseInt(held.Session, 16, 64)
	if err != nil {
		t.Fatal(err)
	}

	others := c.newTeam(t)
	stranger := c.dial(clientv3.Config{Username: others.namespace(), Password: "secret"})
	for what, ask := range map[string]func() error{
		"delete": func() error {
			_, err := stranger.Delete(t.Context(), "/locks/"+tr.namespace()+"/", clientv3.WithPrefix())
			return err
		},
		"read": func() error {
			_, err := stranger.Get(t.Context(), "/lockfs/"+tr.namespace()+"/", clientv3.WithPrefix())
			return err
		},
		"revoke": func() error { _, err := stranger.Revoke(t.Context(), clientv3.LeaseID(lease)); return err },
		"renew":  func() error { _, err := stranger.KeepAliveOnce(t.Context(), clientv3.LeaseID(lease)); return err },
	} {
		var err error
		eventually(t, "the login is known to all members", func() bool {
			err = ask()
			return !errors.Is(err, rpctypes.ErrInvalidAuthToken)
		})
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s in another's name space: %v", what, err)
		}
	}
	others.mount("x").stop()
	holder.must(call{Op: "write", FD: fd, Data: "x"})

	ns := "another-" + tr.namespace()
	tr.refused([]string{"LOCKFS_NAMESPACE=" + ns}, "permission denied", "/locks/"+ns+"/")
	tr.refused([]string{"LOCKFS_PASSWORD=wrong"}, "authentication failed")
	tr.refused([]string{"LOCKFS_USER=", "LOCKFS_PASSWORD="}, "user name is empty")
	// Half of the rights are refused now, and not when the first lock is taken.
	for _, half := range []string{"/locks/", "/lockfs/"} {
		user := "half" + filepath.Base(half)
		if err := c.user(user, "secret", half+tr.namespace()+"/"); err != nil {
			t.Fatal(err)
		}
		tr.refused([]string{"LOCKFS_USER=" + user}, "permission denied", "/locks/"+tr.namespace()+"/")
	}
}

// Logins end after a second, and with each member that is started again. No lock
// is lost by it, nor does a write wait.
func TestLoginExpires(t *testing.T) {
	c := newSecured(t, func(m *memberConfig) { m.TokenTTL = 1 })
	tr := c.newTeam(t, "--wait", "-1")
	a, b := tr.mount("a"), tr.mount("b")
	holder, waiter := newAgent(t), newAgent(t)
	fd := holder.open(a.path("held"), wronly|create)
	pending := waiter.start(call{Op: "open", Path: b.path("held"), Flags: wronly})
	tr.waitFor("held")
	time.Sleep(3 * time.Second) // of nobody asking for anything
	tr.work(a, 2)
	tr.work(b, 2)
	tr.goesOn("with logins that expired")
	c.members[0].kill()
	c.members[0].start()
	c.healthy()
	tr.goesOn("with a member that knows no logins")
	c.client = c.dial(clientv3.Config{Username: "root", Password: "toor"}) // its login has ended, too
	tr.finish()
	holder.must(call{Op: "write", FD: fd, Data: "x"})
	holder.must(call{Op: "close", FD: fd})
	if r := await(t, "open", pending); r.Errno != 0 {
		t.Errorf("the waiter's open: %v", r.Err())
	}
	for _, m := range []*mount{a, b} {
		if log := m.log.String(); strings.Contains(log, "lock session lost") {
			t.Errorf("%s:\n%s", m.name, log)
		}
	}
}

// An operator takes a right away, and gives it back. What is held stays held.
func TestRoleTakenAway(t *testing.T) {
	c := newSecured(t)
	tr := c.newTeam(t, "--wait", "1s", "--ttl", "6s", "--suspend-wait", "1m")
	a := tr.mount("a")
	holder, other := newAgent(t), newAgent(t)
	fd := holder.open(a.path("held"), wronly|create)
	ctx, ns := context.Background(), tr.namespace()
	if _, err := c.client.UserRevokeRole(ctx, ns, ns); err != nil {
		t.Fatal(err)
	}
	other.fails(call{Op: "open", Path: a.path("f"), Flags: wronly | create}, unix.ENOLCK)
	holder.must(call{Op: "write", FD: fd, Data: "x"})
	if _, err := c.client.UserGrantRole(ctx, ns, ns); err != nil {
		t.Fatal(err)
	}
	other.must(call{Op: "close", FD: other.open(a.path("f"), wronly|create)})
	holder.must(call{Op: "write", FD: fd, Data: "x"})
	holder.must(call{Op: "close", FD: fd})
}

// A mount that reads its password from a file goes on with another.
func TestPasswordFile(t *testing.T) {
	c := newSecured(t)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret")
	tr := c.newTeam(t, "--password-file", file)
	tr.env = append(tr.env, "LOCKFS_PASSWORD=")
	a := tr.mount("a")
	holder := newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	write("changed")
	if _, err := c.client.UserChangePassword(context.Background(), tr.namespace(), "changed"); err != nil {
		t.Fatal(err)
	}
	holder.must(call{Op: "close", FD: holder.open(a.path("g"), wronly|create)})
	holder.must(call{Op: "write", FD: fd, Data: "x"})
}

// A password that is changed shuts the mounts out that have the old one, as if
// the lock service were away. Changed back in time, no lock is lost.
func TestPasswordChanged(t *testing.T) {
	c := newSecured(t)
	tr := c.newTeam(t, "--wait", "1s", "--ttl", "6s", "--suspend-wait", "1m")
	a := tr.mount("a")
	holder := newAgent(t)
	fd := holder.open(a.path("f"), wronly|create)
	ctx, user := context.Background(), tr.namespace()
	if _, err := c.client.UserChangePassword(ctx, user, "changed"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the log says why", func() bool {
		return strings.Contains(a.log.String(), "lock session not renewed") && strings.Contains(a.log.String(), "authentication failed")
	})
	tr.refused(nil, "authentication failed")
	if _, err := c.client.UserChangePassword(ctx, user, "secret"); err != nil {
		t.Fatal(err)
	}
	r := holder.do(call{Op: "write", FD: fd, Data: "x"})
	if lost := strings.Contains(a.log.String(), "lock session lost"); lost != (r.Errno != 0) {
		t.Errorf("the write got %v; session lost: %v", r.Err(), lost)
	} else if lost {
		t.Log("it took too long") // for the lease to live
	}
	eventually(t, "locks are granted again", func() bool {
		r := holder.do(call{Op: "open", Path: a.path("g"), Flags: wronly | create})
		return r.Errno == 0
	})
}
