package semantics

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// giveTwoNames makes f, with the name g as well.
func giveTwoNames(v *lab.Volume) {
	v.T.Helper()
	v.Write("f", "")
	if err := os.Link(v.InSource("f"), v.InSource("g")); err != nil {
		v.T.Fatal(err)
	}
}

// contends waits until a request on the mount has found that another owner has its
// file. The mount's log level is debug.
func contends(m *lab.Mount) {
	m.T.Helper()
	lab.Eventually(m.T, "somebody waits on "+m.Name, func() bool { return strings.Contains(m.Log.String(), "lock is another owner's") })
}

// A program that has a file opens it by its other name, and adds and removes names,
// while others, on its own mount or on another, wait for the file by that name. They
// have it when the program has closed it by all of its names.
func TestHolderOpensTheNameWaitedFor(t *testing.T) {
	lab.Over(t, testHolderOpensTheNameWaitedFor, lab.Local, lab.InLeases.ForLong())
}

func testHolderOpensTheNameWaitedFor(t *testing.T, on lab.Setup) {
	for _, where := range []string{"a", "b"} {
		t.Run("waiters on "+where, func(t *testing.T) {
			v := on.NewVolume(t, "--wait", "-1", "--log-level", "debug")
			a := v.Mount("a")
			m := a
			if where == "b" {
				m = v.Mount("b")
			}
			giveTwoNames(v)
			holder, first, second := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
			f := holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
			waits := first.Start(lab.Call{Op: "open", Path: m.Path("g"), Flags: unix.O_WRONLY | unix.O_APPEND})
			contends(m)
			alsoWaits := second.Start(lab.Call{Op: "open", Path: m.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND})

			g := holder.Open(a.Path("g"), unix.O_WRONLY|unix.O_APPEND)
			holder.Must(lab.Call{Op: "write", FD: g, Data: "1"})
			holder.Must(lab.Call{Op: "link", Path: a.Path("g"), Path2: a.Path("h")})
			holder.Must(lab.Call{Op: "close", FD: f})
			holder.Must(lab.Call{Op: "write", FD: g, Data: "2"})
			holder.Must(lab.Call{Op: "unlink", Path: a.Path("h")})
			if len(waits)+len(alsoWaits) > 0 {
				t.Fatal("another owner's open is answered while the file is open")
			}
			holder.Must(lab.Call{Op: "close", FD: g})
			fd := lab.Await(t, "the first waiter's open", waits)
			first.Must(lab.Call{Op: "write", FD: fd.N, Data: "3"})
			first.Must(lab.Call{Op: "close", FD: fd.N})
			fd = lab.Await(t, "the second waiter's open", alsoWaits)
			second.Must(lab.Call{Op: "write", FD: fd.N, Data: "4"})
			second.Must(lab.Call{Op: "close", FD: fd.N})
			if got := v.Read("g"); got != "1234" {
				t.Errorf("the file holds %q", got)
			}
			lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
		})
	}
}

// EDEADLK is for a child that opens by another name what its parent has, too, when
// others wait by that name.
func TestChildOpensTheNameWaitedFor(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1", "--log-level", "debug")
	a := v.Mount("a")
	giveTwoNames(v)
	cmd := exec.Command("sh", "-c", `exec 9>>"$1"; echo; read -r _; perl -e 'open(F, ">>", shift) or print $!+0' "$2"`,
		"sh", a.Path("f"), a.Path("g"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) })
	out := bufio.NewReader(pipe)
	if _, err := out.ReadString('\n'); err != nil { // it has f
		t.Fatal(err)
	}
	other := lab.NewAgent(t)
	waits := other.Start(lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_WRONLY})
	contends(a)
	in.Close()
	told := make(chan string, 1)
	go func() {
		s, _ := out.ReadString('\n')
		told <- s
	}()
	select {
	case got := <-told:
		if got != strconv.Itoa(int(unix.EDEADLK)) {
			t.Errorf("the child gets %q, want EDEADLK", got)
		}
	case <-time.After(lab.CallTimeout):
		t.Fatal("the child's open hangs")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if r := lab.Await(t, "open", waits); r.Errno != 0 {
		t.Errorf("open: %v", r.Errno)
	}
}
