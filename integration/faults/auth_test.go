package faults

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

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// newSecured starts a cluster with authentication.
func newSecured(t *testing.T, change ...func(*lab.MemberConfig)) *lab.Cluster {
	t.Helper()
	c := lab.NewCluster(t, change...)
	addUser(c, "root", "toor")
	lab.Answers(t, "authentication is enabled", func(ctx context.Context) error {
		return unless(rpctypes.ErrUserEmpty, second(c.Client.AuthEnable(ctx)))
	})
	c.Client = c.Dial(clientv3.Config{Username: "root", Password: "toor"})
	return c
}

func second[T any](_ T, err error) error { return err }

// unless returns err, but nil if it says that an earlier try has done it.
func unless(done, err error) error {
	if errors.Is(err, done) {
		return nil
	}
	return err
}

// addUser makes a user with a role of the same name, which may use what is below prefixes.
func addUser(c *lab.Cluster, name, password string, prefixes ...string) {
	c.T.Helper()
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error {
			return unless(rpctypes.ErrUserAlreadyExist, second(c.Client.UserAdd(ctx, name, password)))
		},
		func(ctx context.Context) error {
			return unless(rpctypes.ErrRoleAlreadyExist, second(c.Client.RoleAdd(ctx, name)))
		},
		func(ctx context.Context) error { return second(c.Client.UserGrantRole(ctx, name, name)) },
	} {
		lab.Answers(c.T, "there is a user "+name, step)
	}
	for _, p := range prefixes {
		lab.Answers(c.T, "the role has rights", func(context.Context) error { return lab.GrantPrefix(c.Client, name, p) })
	}
}

func changePassword(c *lab.Cluster, user, password string) {
	c.T.Helper()
	lab.Answers(c.T, "the password is changed", func(ctx context.Context) error {
		return second(c.Client.UserChangePassword(ctx, user, password))
	})
}

// newTeam is history.New with a user of its own, with rights to its name space only.
func newTeam(c *lab.Cluster, t *testing.T, args ...string) *history.Trial {
	t.Helper()
	tr := history.New(t, c, args...)
	addUser(c, tr.Namespace(), "secret", "/locks/"+tr.Namespace()+"/", "/lockfs/"+tr.Namespace()+"/")
	tr.Env = append(tr.Env, "LOCKFS_USER="+tr.Namespace(), "LOCKFS_PASSWORD=secret")
	return tr
}

// refusesLogin runs a mount of another directory that must be refused with one line
// that says why.
func refusesLogin(tr *history.Trial, env []string, says ...string) {
	tr.T.Helper()
	cmd := tr.Command("mount", "--name", "v", tr.T.TempDir(), tr.T.TempDir())
	cmd.Env = append(cmd.Env, env...)
	timer := time.AfterFunc(lab.CallTimeout, func() { _ = cmd.Process.Signal(unix.SIGTERM) })
	defer timer.Stop()
	status, _, stderr := lab.Outcome(tr.T, cmd)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	last := lines[len(lines)-1]
	for _, s := range says {
		if status != 1 || !strings.Contains(last, s) {
			tr.T.Errorf("exit status %d, %q; want 1, and one line with %q", status, stderr, s)
		}
	}
	tr.T.Logf("refused: %s", last)
}

// A user with a role for one name space does all that lockfs does there, and
// nothing in another.
func TestRoleOfOneNamespace(t *testing.T) {
	t.Parallel()
	c := newSecured(t)
	tr := newTeam(c, t, "--wait", "-1")
	a, b := tr.Mount("a"), tr.Mount("b")
	tr.Work(a, 2)
	tr.Work(b, 2)
	tr.GoesOn("with a role of its own")
	for _, w := range writersOn(tr, b) {
		w.Kill()
		w.Ended = true
	}
	b.Kill()
	b = tr.Mount("b") // ends the session of the dead one
	tr.Work(b, 1)
	tr.GoesOn("with a successor")
	tr.Finish()

	holder := lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	held := tr.LS()[0]
	lease, err := strconv.ParseInt(held.Session, 16, 64)
	if err != nil {
		t.Fatal(err)
	}

	others := newTeam(c, t)
	stranger := c.Dial(clientv3.Config{Username: others.Namespace(), Password: "secret"})
	for what, ask := range map[string]func() error{
		"delete": func() error {
			_, err := stranger.Delete(t.Context(), "/locks/"+tr.Namespace()+"/", clientv3.WithPrefix())
			return err
		},
		"read": func() error {
			_, err := stranger.Get(t.Context(), "/lockfs/"+tr.Namespace()+"/", clientv3.WithPrefix())
			return err
		},
		"revoke": func() error { _, err := stranger.Revoke(t.Context(), clientv3.LeaseID(lease)); return err },
		"renew":  func() error { _, err := stranger.KeepAliveOnce(t.Context(), clientv3.LeaseID(lease)); return err },
	} {
		var err error
		lab.Eventually(t, "the login is known to all members", func() bool {
			err = ask()
			return !errors.Is(err, rpctypes.ErrInvalidAuthToken)
		})
		if !errors.Is(err, rpctypes.ErrPermissionDenied) {
			t.Errorf("%s in another's name space: %v", what, err)
		}
	}
	others.Mount("x").Stop()
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})

	ns := "another-" + tr.Namespace()
	refusesLogin(tr, []string{"LOCKFS_NAMESPACE=" + ns}, "permission denied", "/locks/"+ns+"/")
	refusesLogin(tr, []string{"LOCKFS_PASSWORD=wrong"}, "authentication failed")
	refusesLogin(tr, []string{"LOCKFS_USER=", "LOCKFS_PASSWORD="}, "user name is empty")
	// Half of the rights are refused now, and not when the first lock is taken.
	for _, half := range []string{"/locks/", "/lockfs/"} {
		user := "half" + filepath.Base(half)
		addUser(c, user, "secret", half+tr.Namespace()+"/")
		refusesLogin(tr, []string{"LOCKFS_USER=" + user}, "permission denied", "/locks/"+tr.Namespace()+"/")
	}
}

// Logins end after a second, and with each member that is started again. No lock
// is lost by it, nor does a write wait.
func TestLoginExpires(t *testing.T) {
	t.Parallel()
	c := newSecured(t, func(m *lab.MemberConfig) { m.TokenTTL = 1 })
	tr := newTeam(c, t, "--wait", "-1")
	a, b := tr.Mount("a"), tr.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("held"), unix.O_WRONLY|unix.O_CREAT)
	pending := waiter.Start(lab.Call{Op: "open", Path: b.Path("held"), Flags: unix.O_WRONLY})
	tr.WaitFor("held")
	time.Sleep(3 * time.Second) // of nobody asking for anything
	tr.Work(a, 2)
	tr.Work(b, 2)
	tr.GoesOn("with logins that expired")
	c.Members[0].Kill()
	c.Members[0].Start()
	c.Healthy()
	tr.GoesOn("with a member that knows no logins")
	c.Client = c.Dial(clientv3.Config{Username: "root", Password: "toor"}) // its login has ended, too
	tr.Finish()
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	holder.Must(lab.Call{Op: "close", FD: fd})
	if r := lab.Await(t, "open", pending); r.Errno != 0 {
		t.Errorf("the waiter's open: %v", r.Err())
	}
	for _, m := range []*lab.Mount{a, b} {
		if log := m.Log.String(); strings.Contains(log, "lock session lost") {
			t.Errorf("%s:\n%s", m.Name, log)
		}
	}
}

// An operator takes a right away, and gives it back. What is held stays held.
func TestRoleTakenAway(t *testing.T) {
	t.Parallel()
	c := newSecured(t)
	tr := newTeam(c, t, "--wait", "1s", "--ttl", "60s", "--suspend-wait", "1m")
	a := tr.Mount("a")
	holder, other := lab.NewAgent(t), lab.NewAgent(t)
	fd := holder.Open(a.Path("held"), unix.O_WRONLY|unix.O_CREAT)
	ns := tr.Namespace()
	lab.Answers(t, "the role is taken away", func(ctx context.Context) error {
		return unless(rpctypes.ErrRoleNotGranted, second(c.Client.UserRevokeRole(ctx, ns, ns)))
	})
	other.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT}, unix.ENOLCK)
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	lab.Answers(t, "the role is given back", func(ctx context.Context) error { return second(c.Client.UserGrantRole(ctx, ns, ns)) })
	other.Must(lab.Call{Op: "close", FD: other.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
	holder.Must(lab.Call{Op: "close", FD: fd})
}

// A mount that reads its password from a file goes on with another.
func TestPasswordFile(t *testing.T) {
	t.Parallel()
	c := newSecured(t)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("secret")
	tr := newTeam(c, t, "--password-file", file)
	tr.Env = append(tr.Env, "LOCKFS_PASSWORD=")
	a := tr.Mount("a")
	holder := lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	write("changed")
	changePassword(c, tr.Namespace(), "changed")
	holder.Must(lab.Call{Op: "close", FD: holder.Open(a.Path("g"), unix.O_WRONLY|unix.O_CREAT)})
	holder.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
}

// A password that is changed shuts the mounts out that have the old one, as if
// the lock service were away. Changed back in time, no lock is lost.
func TestPasswordChanged(t *testing.T) {
	t.Parallel()
	c := newSecured(t)
	tr := newTeam(c, t, "--wait", "1s", "--ttl", "6s", "--suspend-wait", "1m")
	a := tr.Mount("a")
	holder := lab.NewAgent(t)
	fd := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	changePassword(c, tr.Namespace(), "changed")
	lab.Eventually(t, "the log says why", func() bool {
		return strings.Contains(a.Log.String(), "lock session not renewed") && strings.Contains(a.Log.String(), "authentication failed")
	})
	refusesLogin(tr, nil, "authentication failed")
	changePassword(c, tr.Namespace(), "secret")
	lost := a.LostItsSession()
	switch r := holder.Do(lab.Call{Op: "write", FD: fd, Data: "x"}); {
	case r.Errno == 0 && lost:
		t.Error("the write succeeds after the session was lost")
	case r.Errno != 0: // the log may tell of it a moment later
		lab.Eventually(t, "the session is lost", a.LostItsSession)
		t.Logf("it took too long for the lease to live: %v", r.Err())
	}
	lab.Eventually(t, "locks are granted again", func() bool {
		r := holder.Do(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY | unix.O_CREAT})
		return r.Errno == 0
	})
}
