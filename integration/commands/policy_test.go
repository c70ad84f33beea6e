package commands

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// All mounts of a volume have one policy. It is changed on purpose, and only
// while nobody has the volume mounted.
func TestPolicyMismatch(t *testing.T) { lab.Over(t, testPolicyMismatch, lab.Local, lab.InLeases) }

func testPolicyMismatch(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	rules := filepath.Join(v.Dir, "rules")
	if err := os.WriteFile(rules, []byte("*.tmp nolock # scratch\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	refused := func(says string, args ...string) {
		t.Helper()
		m := v.Refused(args...)
		log := strings.TrimSpace(m.Log.String())
		last := log[strings.LastIndexByte(log, '\n')+1:]
		if status := m.Cmd.ProcessState.ExitCode(); status != 1 || !strings.HasPrefix(last, "lockfs: ") || !strings.Contains(last, says) {
			t.Errorf("mount %q: exit status %d, %s; want 1 and a line with %q", args, status, last, says)
		}
	}
	a := v.Mount("a")
	refused("--set-policy", "--policy", rules)
	refused(a.Dir+" on a", "--policy", rules, "--set-policy")
	a.Stop()
	refused("--set-policy", "--policy", rules)

	a = v.Mount("a", "--policy", rules, "--set-policy")
	v.Mount("b", "--rule", "**/*.tmp   nolock", "--set-policy")
	refused("(no rules)")
	refused("with two policies", "--rule", "*.tmp readonly")
	if status := a.Stop(); status != 0 || !strings.Contains(a.Log.String(), "matched nothing") {
		t.Errorf("exit status %d, and no word of the rule that matched nothing:\n%s", status, a.Log)
	}
}

// A mount that keeps flocks to itself is refused beside mounts that share theirs, and the other way:
// their programs would not exclude each other. 'lockfs exec' fits to both. (docs/SEMANTICS.md, rule 32.)
func TestFlockMismatch(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	refused := func(says string, args ...string) {
		t.Helper()
		m := v.Refused(args...)
		if status := m.Cmd.ProcessState.ExitCode(); status != 1 || !strings.Contains(m.Log.String(), says) {
			t.Errorf("mount %q: exit status %d, %s; want 1 and %q", args, status, m.Log, says)
		}
	}
	for _, flock := range []string{"local", "cluster"} {
		args := []string{"--flock", flock, "--set-policy"}
		a := v.Mount("a", args...)
		v.Mount("b", "--flock", flock).Stop()
		other := map[string]string{"local": "cluster", "cluster": "local"}[flock]
		refused("mount with --flock "+flock, "--flock", other)
		refused(a.Dir+" on a", "--flock", other, "--set-policy")
		if status, _, stderr := lab.Outcome(t, v.Command("exec", a.Path("f"), "--", "true")); status != 0 {
			t.Errorf("exec beside --flock %s: exit status %d, %s", flock, status, stderr)
		}
		a.Stop()
		refused("mount with --flock "+flock, "--flock", other)
	}
}

// A mount that was cut off while the policy changed takes no lock any more:
// by its rules it would exclude nobody who goes by the new ones.
func TestPolicyChangesBehindAMountsBack(t *testing.T) {
	t.Parallel()
	etcd := lab.NewVolume(t) // lends its lock service, which would end with the volume's last mount
	etcd.Mount("m")
	sock := etcd.StateFile("client.sock")
	link := lab.NewPartition(t, sock)
	v := lab.NewVolume(t, "--name", "v", "--ttl", lab.ShortTTL.String(), "--wait", "0", "--suspend-wait", "10ms")
	away := v.Mount("away", "--endpoints", link.Endpoint())
	p := lab.NewAgent(t)
	p.Must(lab.Call{Op: "close", FD: p.Open(away.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
	link.Part()
	lab.Eventually(t, "the mount that is cut off has given up", away.LostItsSession)
	var changed *lab.Mount
	lab.Eventually(t, "its lease has ended and the policy is changed", func() bool {
		changed = v.Start("changed", "--endpoints", "unix://"+sock, "--rule", "/g readonly", "--set-policy")
		lab.Eventually(t, "it is mounted or refused", func() bool {
			select {
			case <-changed.Done:
				return true
			default:
				return lab.FSType(changed.Dir) == unix.FUSE_SUPER_MAGIC
			}
		})
		return lab.FSType(changed.Dir) == unix.FUSE_SUPER_MAGIC
	})
	lab.NewPartition(t, sock) // heals
	lab.Eventually(t, "opens of the old mount are refused for good", func() bool {
		return p.Do(lab.Call{Op: "open", Path: away.Path("f"), Flags: unix.O_WRONLY}).Errno == unix.EIO
	})
	lab.Eventually(t, "the log says why", func() bool { return strings.Contains(away.Log.String(), "mount it again") })
	p.Must(lab.Call{Op: "close", FD: openSoon(t, p, changed.Path("f"))})
}

// openSoon opens a file that is free, or will be, on a mount with --wait 0. That leaves the lock service
// little time to answer.
func openSoon(t *testing.T, p *lab.Agent, path string) (fd int) {
	t.Helper()
	lab.Eventually(t, path+" can be opened", func() bool {
		r := p.Do(lab.Call{Op: "open", Path: path, Flags: unix.O_WRONLY})
		fd = r.N
		return r.Errno == 0
	})
	return fd
}

// A policy changes while a mount keeps a file's lock and has a directory delegated, with a file open
// in it: not beside the mount, at once when it is unmounted, and after the end of its lease when it
// is killed or frozen. A mount that thaws then grants nothing by itself any more.
func TestPolicyChangesWhileDelegated(t *testing.T) {
	lab.Over(t, testPolicyChangesWhileDelegated, lab.Local, lab.InLeases.ForLong())
}

func testPolicyChangesWhileDelegated(t *testing.T, on lab.Setup) {
	c := on.NewService(t)
	for _, how := range []string{"unmounted", "killed", "frozen"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			v := lab.NewVolume(t, "--wait", "10s")
			v.Env = append(v.Env, append(c.Env(), "LOCKFS_NAMESPACE="+v.Namespace())...)
			a := v.MountWatched("a", "--keep", "1m")
			p, q := lab.NewAgent(t), lab.NewAgent(t)
			lab.Eventually(t, "a lock is kept", func() bool {
				p.Must(lab.Call{Op: "close", FD: p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)})
				return a.Metric("lockfs_locks_kept") == 1
			})
			fill(v, p, a, "d")
			fd := p.Open(a.Path("d/open"), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
			p.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
			change := []string{"--rule", "/d/** nolock", "--rule", "/f nolock", "--set-policy"}
			if m := v.Refused(change...); !strings.Contains(m.Log.String(), a.Dir+" on a") {
				t.Errorf("the policy is changed beside a mount: %s", m.Log)
			}
			p.Must(lab.Call{Op: "write", FD: fd, Data: "a"})
			if n := a.Metric("lockfs_directories_delegated"); n != 1 {
				t.Errorf("%v directories are delegated", n)
			}
			switch how {
			case "unmounted":
				p.Must(lab.Call{Op: "close", FD: fd})
				a.Stop()
			case "killed":
				a.Kill()
			case "frozen":
				lab.Freeze(t, a.Cmd.Process.Pid)
			}
			var b *lab.Mount
			change = append(change, "--keep", "1m")
			if how == "unmounted" {
				b = v.Mount("b", change...)
			} else {
				lab.Eventually(t, "its lease has ended and the policy is changed", func() bool {
					b = v.Start("b", change...)
					lab.Eventually(t, "it is mounted or refused", func() bool {
						select {
						case <-b.Done:
							return true
						default:
							return lab.FSType(b.Dir) == unix.FUSE_SUPER_MAGIC
						}
					})
					return lab.FSType(b.Dir) == unix.FUSE_SUPER_MAGIC
				})
			}
			for _, name := range []string{"f", "d/open", "d/new"} { // without a lock
				theirs := q.Open(b.Path(name), unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND|unix.O_NONBLOCK)
				q.Must(lab.Call{Op: "write", FD: theirs, Data: "b"})
				q.Must(lab.Call{Op: "close", FD: theirs})
			}
			if es := v.LS(); len(es) > 0 {
				t.Errorf("listed: %+v", es)
			}
			if how != "frozen" {
				return
			}
			late := p.Start(lab.Call{Op: "write", FD: fd, Data: "late"})
			if err := a.Cmd.Process.Signal(unix.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if r := lab.Await(t, "the write", late); r.Errno != unix.EIO {
				t.Errorf("the write on the mount that was frozen: %v", r.Err())
			}
			p.Fails(lab.Call{Op: "close", FD: fd}, unix.EIO)
			for _, name := range []string{"f", "d/open", "d/1", "d/another"} {
				lab.Eventually(t, "an open on the mount that was frozen is refused for good", func() bool {
					r := p.Do(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_CREAT})
					if r.Errno == 0 {
						t.Fatalf("%s is opened by the former policy", name)
					}
					return r.Errno == unix.EIO
				})
			}
			if got := v.Read("d/open"); got != "aab" {
				t.Errorf("the file holds %q", got)
			}
		})
	}
}

// A policy changes under programs, in two rolling updates: no two mounts ever lock by policies that
// have nothing in common. (docs/adr/0069.)
func TestPolicyChangesInTwoSteps(t *testing.T) {
	lab.Over(t, testPolicyChangesInTwoSteps, lab.Local, lab.InLeases)
}

func testPolicyChangesInTwoSteps(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "0")
	former := []string{"--rule", "/was nolock", "--rule", "/never readonly"}
	both := []string{"--rule", "/will nolock", "--former-rule", "/was nolock", "--former-rule", "/never readonly"}
	next := []string{"--rule", "/will nolock", "--set-policy"}
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	opens := func(p *lab.Agent, path string) syscall.Errno {
		t.Helper()
		r := p.Do(lab.Call{Op: "open", Path: path, Flags: unix.O_WRONLY})
		if r.Errno == 0 {
			p.Must(lab.Call{Op: "close", FD: r.N})
		}
		return r.Errno
	}
	locks := func(a, b *lab.Mount, name string) bool {
		t.Helper()
		var first lab.Result
		lab.Eventually(t, "an earlier open has released its lock", func() bool {
			first = p.Do(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_CREAT})
			return first.Errno != unix.EBUSY && first.Errno != unix.ENOLCK
		})
		if first.Errno != 0 {
			t.Fatalf("%s: %v", name, first.Errno)
		}
		defer func() { p.Must(lab.Call{Op: "close", FD: first.N}) }()
		var errno syscall.Errno
		lab.Eventually(t, "the lock service answers", func() bool { // under load not within a --wait of 0
			errno = opens(q, b.Path(name))
			return errno != unix.ENOLCK
		})
		if errno != 0 && errno != unix.EBUSY {
			t.Fatalf("%s: %v", name, errno)
		}
		return errno == unix.EBUSY
	}
	exclude := func(a, b *lab.Mount, want map[string]bool) {
		t.Helper()
		for name, want := range want {
			if one, other := locks(a, b, name), locks(b, a, name); one != want || other != want {
				t.Errorf("%s and %s exclude each other from %s: %v, the other way %v; want %v", a.Name, b.Name, name, one, other, want)
			}
		}
	}
	refused := func(says string, args []string) {
		t.Helper()
		if m := v.Refused(args...); !strings.Contains(m.Log.String(), says) {
			t.Errorf("mount %q: want %q in %s", args, says, m.Log)
		}
	}

	a := v.Mount("a", former...)
	refused(a.Dir+" on a", next)
	b := v.Mount("b", both...)
	exclude(a, b, map[string]bool{"f": true, "will": true, "was": false})
	refused(a.Dir+" on a", next)
	if r := q.Do(lab.Call{Op: "open", Path: b.Path("never"), Flags: unix.O_WRONLY | unix.O_CREAT}); r.Errno != unix.EROFS {
		t.Errorf("what the former policy makes read-only: %v", r.Errno)
	}
	a.Stop()
	a = v.Mount("a", both...)
	exclude(a, b, map[string]bool{"f": true, "will": true, "was": true})

	a.Stop()
	a = v.Mount("a", next...)
	exclude(a, b, map[string]bool{"f": true, "will": false, "was": true})
	refused("with two policies", former)
	if status, _, stderr := lab.Outcome(t, v.Command("exec", "--rule", "/will nolock", b.Path("f"), "--", "true")); status != 0 {
		t.Errorf("exec by the next policy: exit status %d, %s", status, stderr)
	}
	// A mount that saw the record of the former policy, and is away for longer than its TTL, comes back.
	held := openSoon(t, q, b.Path("f"))
	lab.Freeze(t, b.Cmd.Process.Pid)
	lab.Eventually(t, "the session of b has ended", func() bool { return opens(p, a.Path("f")) == 0 })
	if err := b.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	q.Do(lab.Call{Op: "close", FD: held})
	lab.Eventually(t, "b has a session again", func() bool { return opens(q, b.Path("f")) == 0 })
	b.Stop()
	b = v.Mount("b", "--rule", "/will nolock")
	exclude(a, b, map[string]bool{"f": true, "will": false, "was": true})
}

// --flock changes in the same way, in both directions. --former-flock alone leaves the rules as they
// are.
func TestFlockChangesInTwoSteps(t *testing.T) {
	lab.Over(t, testFlockChangesInTwoSteps, lab.Local, lab.InLeases)
}

func testFlockChangesInTwoSteps(t *testing.T, on lab.Setup) {
	for former, next := range map[string]string{"local": "cluster", "cluster": "local"} {
		v := on.NewVolume(t, "--rule", "** nolock")
		v.Write("f", "")
		p, q := lab.NewAgent(t), lab.NewAgent(t)
		exclude := func(a, b *lab.Mount, want bool) {
			t.Helper()
			for _, m := range [][2]*lab.Mount{{a, b}, {b, a}} {
				one, other := p.Open(m[0].Path("f"), unix.O_RDWR), q.Open(m[1].Path("f"), unix.O_RDWR)
				p.Must(lab.Call{Op: "flock", FD: one, Flags: unix.LOCK_EX})
				r := q.InTime(lab.Call{Op: "flock", FD: other, Flags: unix.LOCK_EX | unix.LOCK_NB})
				if r.Errno != 0 && r.Errno != unix.EAGAIN || (r.Errno == unix.EAGAIN) != want {
					t.Errorf("%s to %s: a lock on %s, and then one on %s: %v", former, next, m[0].Name, m[1].Name, r.Errno)
				}
				p.Must(lab.Call{Op: "close", FD: one})
				q.Must(lab.Call{Op: "close", FD: other})
			}
		}
		both := []string{"--flock", next, "--former-flock", former}
		a := v.Mount("a", "--flock", former)
		if m := v.Refused("--flock", next); !strings.Contains(m.Log.String(), "--former-flock") {
			t.Errorf("%s to %s at once: want what to do in %s", former, next, m.Log)
		}
		b := v.Mount("b", both...)
		exclude(a, b, former == "cluster")
		a.Stop()
		a = v.Mount("a", both...)
		exclude(a, b, true)
		a.Stop()
		a = v.Mount("a", "--flock", next, "--set-policy")
		exclude(a, b, next == "cluster")
		b.Stop()
		b = v.Mount("b", "--flock", next)
		exclude(a, b, next == "cluster")
		a.Stop()
		b.Stop()
	}
}
