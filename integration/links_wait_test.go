package integration

import (
	"bufio"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// twoNames makes f, with the name g as well.
func (v *volume) twoNames() {
	v.t.Helper()
	v.write("f", "")
	if err := os.Link(v.inSource("f"), v.inSource("g")); err != nil {
		v.t.Fatal(err)
	}
}

// contends waits until a request on the mount has found that another owner has its
// file. The mount's log level is debug.
func (m *mount) contends() {
	m.t.Helper()
	eventually(m.t, "somebody waits on "+m.name, func() bool { return strings.Contains(m.log.String(), "lock is another owner's") })
}

// A program that has a file opens it by its other name, and adds and removes names,
// while others, on its own mount or on another, wait for the file by that name. They
// have it when the program has closed it by all of its names.
func TestHolderOpensTheNameWaitedFor(t *testing.T) {
	over(t, testHolderOpensTheNameWaitedFor, local, inLeases.forLong())
}

func testHolderOpensTheNameWaitedFor(t *testing.T, on setup) {
	for _, where := range []string{"a", "b"} {
		t.Run("waiters on "+where, func(t *testing.T) {
			v := on.newVolume(t, "--wait", "-1", "--log-level", "debug")
			v.inMemory()
			a := v.mount("a")
			m := a
			if where == "b" {
				m = v.mount("b")
			}
			v.twoNames()
			holder, first, second := newAgent(t), newAgent(t), newAgent(t)
			f := holder.open(a.path("f"), wronly|appends)
			waits := first.start(call{Op: "open", Path: m.path("g"), Flags: wronly | appends})
			m.contends()
			alsoWaits := second.start(call{Op: "open", Path: m.path("f"), Flags: wronly | appends})

			g := holder.open(a.path("g"), wronly|appends)
			holder.must(call{Op: "write", FD: g, Data: "1"})
			holder.must(call{Op: "link", Path: a.path("g"), Path2: a.path("h")})
			holder.must(call{Op: "close", FD: f})
			holder.must(call{Op: "write", FD: g, Data: "2"})
			holder.must(call{Op: "unlink", Path: a.path("h")})
			if len(waits)+len(alsoWaits) > 0 {
				t.Fatal("another owner's open is answered while the file is open")
			}
			holder.must(call{Op: "close", FD: g})
			fd := await(t, "the first waiter's open", waits)
			first.must(call{Op: "write", FD: fd.N, Data: "3"})
			first.must(call{Op: "close", FD: fd.N})
			fd = await(t, "the second waiter's open", alsoWaits)
			second.must(call{Op: "write", FD: fd.N, Data: "4"})
			second.must(call{Op: "close", FD: fd.N})
			if got := v.read("g"); got != "1234" {
				t.Errorf("the file holds %q", got)
			}
			eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
		})
	}
}

// EDEADLK is for a child that opens by another name what its parent has, too, when
// others wait by that name.
func TestChildOpensTheNameWaitedFor(t *testing.T) {
	v := newVolume(t, "--wait", "-1", "--log-level", "debug")
	v.inMemory()
	a := v.mount("a")
	v.twoNames()
	cmd := exec.Command("sh", "-c", `exec 9>>"$1"; echo; read -r _; perl -e 'open(F, ">>", shift) or print $!+0' "$2"`,
		"sh", a.path("f"), a.path("g"))
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
	other := newAgent(t)
	waits := other.start(call{Op: "open", Path: a.path("g"), Flags: wronly})
	a.contends()
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
	case <-time.After(callTimeout):
		t.Fatal("the child's open hangs")
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if r := await(t, "open", waits); r.Errno != 0 {
		t.Errorf("open: %v", r.Errno)
	}
}
