package handover

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// onceOnly is a call that fails, or does more, when it is made twice.
type onceOnly struct {
	name    string
	syscall string // of the daemon
	first   string // one that comes right before, unless it is ""
	prepare func(dir string) error
	call    func(dir string) error
	flags   []string               // of the mount
	partly  func(dir string) error // what was done on the volume before the daemon dies
	done    func(dir string) bool  // as the volume shows it
}

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

func is(path, text string) bool {
	b, err := os.ReadFile(path)
	return err == nil && string(b) == text
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func removed(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}

func onFile(path string, flags int, do func(fd int) error) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(do(fd), unix.Close(fd))
}

func appendTwo(dir string) error {
	return onFile(dir+"/log", unix.O_WRONLY|unix.O_APPEND, func(fd int) error {
		n, err := unix.Write(fd, []byte("2\n"))
		if err == nil && n != 2 {
			err = fmt.Errorf("%d bytes were written", n)
		}
		return err
	})
}

var onceOnlys = []onceOnly{
	{
		name: "append", syscall: "pwritev2",
		prepare: func(d string) error { return write(d+"/log", "1\n") },
		call:    appendTwo,
		done:    func(d string) bool { return is(d+"/log", "1\n2\n") },
	},
	{
		name: "append that is cut", syscall: "pwritev2",
		prepare: func(d string) error { return write(d+"/log", "1\n") },
		call:    appendTwo,
		partly:  func(d string) error { return write(d+"/log", "1\n2") },
		done:    func(d string) bool { return is(d+"/log", "1\n2\n") },
	},
	{ // by the same program, with another name of the file, which is another inode of the kernel's
		name: "append beside another", syscall: "pwritev2",
		prepare: func(d string) error { return write(d+"/log", "1\n") },
		call:    appendTwo,
		partly:  func(d string) error { return write(d+"/log", "1\n3\n") },
		done:    func(d string) bool { return is(d+"/log", "1\n3\n2\n") },
	},
	{
		name: "append without a lock", syscall: "pwritev2", flags: []string{"--rule", "* nolock"},
		prepare: func(d string) error { return write(d+"/log", "1\n") },
		call:    appendTwo,
		done:    func(d string) bool { return is(d+"/log", "1\n2\n") },
	},
	{
		name: "create", syscall: "openat", first: "unshare", // the daemon opens much
		call: func(d string) error {
			return onFile(d+"/made", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, func(fd int) error {
				_, err := unix.Write(fd, []byte("x"))
				return err
			})
		},
		done: func(d string) bool { return exists(d + "/made") },
	},
	{
		name: "mkdir", syscall: "mkdirat",
		call: func(d string) error { return unix.Mkdir(d+"/made", 0o755) },
		done: func(d string) bool { return exists(d + "/made") },
	},
	{
		name: "mknod", syscall: "mknodat",
		call: func(d string) error { return unix.Mknod(d+"/made", unix.S_IFIFO|0o600, 0) },
		done: func(d string) bool { return exists(d + "/made") },
	},
	{
		name: "symlink", syscall: "symlinkat",
		call: func(d string) error { return unix.Symlink("x", d+"/made") },
		done: func(d string) bool { return exists(d + "/made") },
	},
	{
		name: "link", syscall: "linkat",
		prepare: func(d string) error { return write(d+"/f", "x") },
		call:    func(d string) error { return unix.Link(d+"/f", d+"/g") },
		done:    func(d string) bool { return is(d+"/g", "x") && is(d+"/f", "x") },
	},
	{
		name: "unlink", syscall: "unlinkat",
		prepare: func(d string) error { return write(d+"/f", "x") },
		call:    func(d string) error { return unix.Unlink(d + "/f") },
		done:    func(d string) bool { return removed(d + "/f") },
	},
	{
		name: "rmdir", syscall: "unlinkat",
		prepare: func(d string) error { return os.Mkdir(d+"/sub", 0o755) },
		call:    func(d string) error { return unix.Rmdir(d + "/sub") },
		done:    func(d string) bool { return removed(d + "/sub") },
	},
	{
		name: "rename", syscall: "renameat2",
		prepare: func(d string) error { return errors.Join(write(d+"/f", "new"), write(d+"/g", "old")) },
		call:    func(d string) error { return unix.Rename(d+"/f", d+"/g") },
		done:    func(d string) bool { return is(d+"/g", "new") && removed(d+"/f") },
	},
	{
		name: "rename of a directory", syscall: "renameat2",
		prepare: func(d string) error { return errors.Join(os.Mkdir(d+"/sub", 0o755), write(d+"/sub/f", "x")) },
		call:    func(d string) error { return unix.Rename(d+"/sub", d+"/moved") },
		done:    func(d string) bool { return is(d+"/moved/f", "x") && removed(d+"/sub") },
	},
	{
		name: "exchange", syscall: "renameat2",
		prepare: func(d string) error { return errors.Join(write(d+"/f", "1"), write(d+"/g", "2")) },
		call: func(d string) error {
			return unix.Renameat2(unix.AT_FDCWD, d+"/f", unix.AT_FDCWD, d+"/g", unix.RENAME_EXCHANGE)
		},
		done: func(d string) bool { return is(d+"/g", "1") && is(d+"/f", "2") },
	},
	{
		name: "setxattr", syscall: "setxattr",
		prepare: func(d string) error { return write(d+"/f", "x") },
		call:    func(d string) error { return unix.Setxattr(d+"/f", "user.x", []byte("v"), unix.XATTR_CREATE) },
		done: func(d string) bool {
			n, err := unix.Getxattr(d+"/f", "user.x", nil)
			return err == nil && n == 1
		},
	},
	{
		name: "removexattr", syscall: "removexattr",
		prepare: func(d string) error {
			return errors.Join(write(d+"/f", "x"), unix.Setxattr(d+"/f", "user.x", []byte("v"), 0))
		},
		call: func(d string) error { return unix.Removexattr(d+"/f", "user.x") },
		done: func(d string) bool {
			_, err := unix.Getxattr(d+"/f", "user.x", nil)
			return err == unix.ENODATA
		},
	},
}

// A call that cannot be made twice is made once, wherever in it the daemon dies, and its program is
// told of one success. (docs/SEMANTICS.md, rule 27.)
func TestCallsAreMadeOnce(t *testing.T) {
	if _, err := exec.LookPath("strace"); err != nil {
		t.Fatal("strace is missing: run 'make deps'")
	}
	lab.InTurn(t, testCallsAreMadeOnce, lab.Local, lab.InLeases.ForLong())
}

func testCallsAreMadeOnce(t *testing.T, on lab.Setup) {
	for _, c := range onceOnlys {
		for _, after := range []bool{false, true} {
			if after && c.partly != nil {
				continue
			}
			when := "before"
			if after {
				when = "after"
			}
			t.Run(c.name+"/"+when, func(t *testing.T) {
				t.Parallel()
				for range 5 {
					if testCallIsMadeOnce(t, on, c, after) {
						return
					}
					t.Log("the call was not seen to stand still: once again")
				}
				t.Fatal("it is never seen")
			})
		}
	}
}

// testCallIsMadeOnce reports whether the test has looked often enough to see the call stand still.
func testCallIsMadeOnce(t *testing.T, on lab.Setup, c onceOnly, after bool) bool {
	v := on.NewVolume(t, append([]string{"--ttl", patientTTL}, c.flags...)...)
	if c.prepare != nil {
		if err := c.prepare(v.Source); err != nil {
			t.Fatal(err)
		}
	}
	m := lab.Supervise(v.Mount("a", "--supervise"))
	died, missed := false, false
	returned := make(chan error, 1)
	m.Dies(func() {
		worker := m.Serving()
		holds, end := traced(t, worker, c, after, held)
		go func() { returned <- lab.InTime(func() error { return c.call(m.Dir) }) }()
		missed = !isSeen(t, "the daemon is "+c.syscall, returned, held, func() bool { return holds() && c.done(v.Source) == after })
		if c.partly != nil {
			if err := c.partly(v.Source); err != nil {
				t.Error(err)
			}
		}
		died = unix.Kill(worker, unix.SIGKILL) == nil
		end()
	})
	if missed {
		return false
	}
	if err := lab.Await(t, "the call", returned); err != nil {
		t.Errorf("the program was told: %v", err)
	}
	if !died || !c.done(v.Source) {
		t.Errorf("killed: %v; the volume does not show the call", died)
	}
	if !c.done(m.Dir) {
		t.Error("the view does not show the call")
	}
	free(t, m.Mount, v)
	return true
}

// A daemon that lost its lease in the middle of a call, and then died, leaves no claim to what another mount
// has done meanwhile. (docs/SEMANTICS.md, rule 27.)
func TestCallOfALostLease(t *testing.T) {
	for _, c := range onceOnlys {
		if c.name != "create" && c.name != "unlink" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lab.InTries(t, func() bool { return testCallOfALostLease(t, c) })
		})
	}
}

// testCallOfALostLease returns false if the lease ended before the call was seen to stand still.
func testCallOfALostLease(t *testing.T, c onceOnly) bool {
	v := lab.NewVolume(t, "--ttl", lab.ShortTTL.String())
	if c.prepare != nil {
		if err := c.prepare(v.Source); err != nil {
			t.Fatal(err)
		}
	}
	b := v.Mount("b", "--ttl", "5m") // which serves etcd, and loses nothing
	a := lab.Supervise(v.Mount("a", "--supervise"))
	a.BecomesSteady()
	returned, missed := make(chan error, 1), false
	a.Dies(func() {
		worker := a.Serving()
		holds, end := traced(t, worker, c, false, time.Minute)
		go func() { returned <- lab.InTime(func() error { return c.call(a.Dir) }) }()
		lab.Eventually(t, "the daemon is before "+c.syscall, func() bool {
			missed = len(returned) > 0
			return missed || holds()
		})
		t.Cleanup(func() { _ = unix.Kill(worker, unix.SIGCONT) })
		if err := unix.Kill(worker, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		lab.Eventually(t, "the other mount has done it", func() bool {
			err := c.call(b.Dir)
			if err != nil && err != unix.EBUSY && err != unix.ENOLCK {
				t.Fatal(err)
			}
			return err == nil
		})
		_ = unix.Kill(worker, unix.SIGKILL)
		end()
	})
	if err := lab.Await(t, "the call", returned); !errors.Is(err, unix.EIO) {
		t.Errorf("the program was told: %v, want EIO", err)
	}
	return !missed
}

// A program that opens a name never gets the file that had it before, though the daemon dies when it has
// just sent the program to look. (docs/SEMANTICS.md, rule 27.)
func TestDeathBeforeTheAnswer(t *testing.T) {
	v := lab.NewVolume(t, "--ttl", patientTTL)
	a := lab.Supervise(v.Mount("a", "--supervise"))
	for _, k := range []opening{
		{"open", unix.O_WRONLY, "New"},
		{"truncate", unix.O_RDONLY | unix.O_TRUNC, ""},
		{"create", unix.O_WRONLY | unix.O_CREAT, "New"},
	} {
		tries := 5
		for ; tries > 0 && !testDeathBeforeTheAnswer(t, v, a, k); tries-- {
			t.Logf("%s: the daemon was not seen to stand still: once again", k.name)
		}
		if tries == 0 {
			t.Fatalf("%s: it is never seen", k.name)
		}
	}
}

// opening is how a program opens a file, to write to it, and what the file holds then.
type opening struct {
	name  string
	flags int
	want  string
}

// testDeathBeforeTheAnswer reports whether the test has looked often enough to see the daemon stand
// still.
func testDeathBeforeTheAnswer(t *testing.T, v *lab.Volume, a *lab.Supervised, k opening) bool {
	v.Write("f", "old")
	a.BecomesSteady()
	worker := a.Serving()
	// Two answers come before the open's, and the kernel uses both for a second.
	const held = 700 * time.Millisecond
	holds, end := traced(t, worker, onceOnly{syscall: "writev"}, false, held)
	if _, err := os.Stat(a.Path("f")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(v.InSource("f"), v.InSource("former")), write(v.InSource("f"), "new")); err != nil {
		t.Fatal(err)
	}
	returned := make(chan error, 1)
	go func() {
		returned <- lab.InTime(func() error {
			return onFile(a.Path("f"), k.flags, func(fd int) error {
				if k.flags&unix.O_TRUNC != 0 {
					return nil
				}
				_, err := unix.Write(fd, []byte("N"))
				return err
			})
		})
	}()
	if !isSeen(t, "the daemon is about to answer the "+k.name, returned, held, holds) {
		end()
		return false
	}
	a.Dies(func() {
		_ = unix.Kill(worker, unix.SIGKILL)
		end()
	})
	if err := lab.Await(t, "the call", returned); err != nil {
		t.Errorf("%s: the program was told: %v", k.name, err)
	}
	if f, former := v.Read("f"), v.Read("former"); f != k.want || former != "old" {
		t.Errorf("%s: the file is %q, want %q, and the former one %q", k.name, f, k.want, former)
	}
	free(t, a.Mount, v)
	return true
}

// isSeen waits until holds sees the daemon stand still in a call, which lasts so long. false: the call
// has returned before, and the test has looked too seldom to see it.
func isSeen(t *testing.T, what string, returned <-chan error, lasts time.Duration, holds func() bool) bool {
	t.Helper()
	seldom, missed := false, false
	looked := time.Now()
	lab.Eventually(t, what, func() bool {
		var err error
		select {
		case err = <-returned:
			missed = true
		default:
		}
		seldom = seldom || time.Since(looked) > (lasts-stillFor)/2 // two looks see it
		looked = time.Now()
		if missed && (err != nil || !seldom) {
			t.Fatalf("%s: the call has returned before the daemon died: %v", what, err)
		}
		return missed || holds()
	})
	return !missed
}

// free fails the test if a lock is left.
func free(t *testing.T, m *lab.Mount, v *lab.Volume) {
	t.Helper()
	lab.Eventually(t, "no lock is left", func() bool {
		out, err := v.Command("ls", v.Source).Output()
		if err != nil {
			t.Fatalf("lockfs ls: %v\n%s", err, m.Log)
		}
		return len(bytes.Split(bytes.TrimSpace(out), []byte("\n"))) <= 1
	})
}

// numbers are those of the system calls at which a daemon dies.
var numbers = map[string]int{
	"linkat": unix.SYS_LINKAT, "mkdirat": unix.SYS_MKDIRAT, "mknodat": unix.SYS_MKNODAT, "openat": unix.SYS_OPENAT,
	"pwritev2": unix.SYS_PWRITEV2, "removexattr": unix.SYS_REMOVEXATTR, "renameat2": unix.SYS_RENAMEAT2,
	"setxattr": unix.SYS_SETXATTR, "symlinkat": unix.SYS_SYMLINKAT, "unlinkat": unix.SYS_UNLINKAT,
	"unshare": unix.SYS_UNSHARE, "writev": unix.SYS_WRITEV,
}

// held is how long a thread stands still, unless it is killed. It may do so at several calls.
const held = 2 * time.Second

// stillFor is longer than strace itself stops a thread.
const stillFor = 200 * time.Millisecond

// traced has a process stand still at a system call, before or after it is made. holds reports
// whether it does, and end lets it go on.
func traced(t *testing.T, pid int, c onceOnly, after bool, held time.Duration) (holds func() bool, end func()) {
	t.Helper()
	point := "delay_enter"
	if after {
		point = "delay_exit"
	}
	name := c.syscall
	if !after && c.first != "" {
		name = c.first
	}
	args := []string{"-f", "-qq", "-o", "/dev/null", "-p", fmt.Sprint(pid), "-e", "trace=" + name, "-e", fmt.Sprintf("inject=%s:%s=%d", name, point, held.Microseconds())}
	strace := exec.Command("strace", args...)
	var said bytes.Buffer
	strace.Stderr = &said
	if err := strace.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = strace.Wait(); close(ended) }()
	end = func() {
		_ = strace.Process.Kill()
		<-ended
	}
	t.Cleanup(end)
	all := func(is func(task, status string) bool) int {
		n := 0
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
		for _, task := range tasks {
			if status, err := os.ReadFile(task + "/status"); err == nil && is(task, string(status)) {
				n++
			}
		}
		return n
	}
	lab.Eventually(t, "strace is attached", func() bool {
		select {
		case <-ended:
			t.Fatalf("strace: %s", said.String())
		default:
		}
		return all(func(_, s string) bool { return strings.Contains(s, "\nTracerPid:\t0\n") }) == 0
	})
	stands := func(task, status string) bool { // at the call: strace stops threads elsewhere, too
		call, _ := os.ReadFile(task + "/syscall")
		return strings.Contains(status, "\nState:\tt") && strings.HasPrefix(string(call), fmt.Sprint(numbers[name], " "))
	}
	var since time.Time
	return func() bool {
		if all(stands) == 0 {
			since = time.Time{}
			return false
		}
		if since.IsZero() {
			since = time.Now()
		}
		return time.Since(since) > stillFor
	}, end
}
