package semantics

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// closeRig is a file that programs on mount a have open, and a program on mount
// b that tries to.
type closeRig struct {
	t     *testing.T
	vol   *lab.Volume
	a, b  *lab.Mount
	other *lab.Agent
}

// held fails the test unless path is locked.
func (r *closeRig) held(path, when string) {
	r.t.Helper()
	if o := r.other.InTime(lab.Call{Op: "open", Path: r.b.Path(path), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); o.Errno != unix.EAGAIN {
		r.t.Fatalf("%s after %s: %v, want EAGAIN", path, when, o.Err())
	}
}

// free fails the test unless path gets free, with the bytes want.
func (r *closeRig) free(path, when, want string) {
	r.t.Helper()
	lab.Eventually(r.t, path+" is free after "+when, func() bool {
		o := r.other.Do(lab.Call{Op: "open", Path: r.b.Path(path), Flags: unix.O_RDWR | unix.O_NONBLOCK})
		if o.Errno != 0 {
			return false
		}
		if got := r.other.Do(lab.Call{Op: "pread", FD: o.N, N: len(want)}); got.Data != want {
			r.t.Errorf("%s holds %q after %s, want %q", path, got.Data, when, want)
		}
		r.other.Must(lab.Call{Op: "close", FD: o.N})
		return true
	})
	lab.Eventually(r.t, "no entry is left after "+when, func() bool { return len(r.vol.LS()) == 0 })
}

// The lock of an open file lives until its last reference is gone, whatever
// kind of reference that is and whoever has it, and no longer;
// the next holder then sees all that was written before.
func TestCloseMatrix(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	r := &closeRig{t: t, vol: v, a: v.Mount("a"), b: v.Mount("b"), other: lab.NewAgent(t)}
	for _, c := range []struct {
		name string
		run  func(*closeRig)
	}{
		{"dup, the duplicate closed first", closeDupFirst},
		{"dup2 over another file", closeByDup2},
		{"fork, the parent closes first", func(r *closeRig) { closeForked(r, "parent", "child") }},
		{"fork, the child closes first", func(r *closeRig) { closeForked(r, "child", "parent") }},
		{"exec that keeps the descriptor", closeKeptByExec},
		{"exec that closes the descriptor", closeByExec},
		{"sent, the sender closes first", func(r *closeRig) { closeSent(r, true) }},
		{"sent, the receiver closes first", func(r *closeRig) { closeSent(r, false) }},
		{"sent and never received", closeInFlight},
		{"mapped, msync", closeMapped},
		{"mapped, unmapped before close", closeUnmappedFirst},
		{"mapped, one page unmapped", closePartlyMapped},
		{"mapped twice", closeMappedTwice},
		{"killed with a dirty mapping", closeKilledDirty},
		{"killed with all at once", closeKilled},
	} {
		t.Run(c.name, func(t *testing.T) {
			v.Write("f", strings.Repeat("-", 8192))
			sub := *r
			sub.t = t
			c.run(&sub)
		})
	}
}

func closeDupFirst(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := p.Open(r.a.Path("f"), unix.O_WRONLY)
	dup := p.Must(lab.Call{Op: "dup", FD: fd})
	p.Must(lab.Call{Op: "close", FD: dup})
	r.held("f", "close() of the duplicate")
	p.Must(lab.Call{Op: "write", FD: fd, Data: "dup"})
	p.Must(lab.Call{Op: "close", FD: fd})
	r.free("f", "close() of the original", "dup-")
}

func closeByDup2(r *closeRig) {
	r.vol.Write("g", "---")
	p := lab.NewAgent(r.t)
	f, g := p.Open(r.a.Path("f"), unix.O_WRONLY), p.Open(r.a.Path("g"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: g, Data: "g"})
	p.Must(lab.Call{Op: "dup2", FD: f, N: g})
	r.held("f", "dup2")
	lab.Eventually(r.t, "g is free", func() bool { return len(r.vol.LS()) == 1 })
	p.Must(lab.Call{Op: "close", FD: f})
	r.held("f", "close() of the original")
	p.Must(lab.Call{Op: "write", FD: g, Data: "f"})
	p.Must(lab.Call{Op: "close", FD: g})
	r.free("f", "close() of the duplicate", "f-")
	r.free("g", "dup2 over it", "g--")
}

// forker opens a file and forks. Each of the two then writes its name into the
// file and closes it when it is told to, and tells that it has.
const forker = `
	$| = 1; open(F, ">>", $ARGV[0]) or die "open: $!"; select(F); $| = 1; select(STDOUT);
	$me = fork() ? "parent" : "child";
	open(IN, "<&=", $me eq "parent" ? 3 : 4) or die "$me: $!";
	<IN>; print F $me or die; close(F) or die; print "$me\n"; <IN>;
`

func closeForked(r *closeRig, first, second string) {
	cmd := exec.Command("perl", "-e", forker, r.a.Path("f"))
	cmd.Stderr = os.Stderr
	tell := make(map[string]io.WriteCloser)
	for _, who := range []string{"parent", "child"} {
		theirs, ours, err := os.Pipe()
		if err != nil {
			r.t.Fatal(err)
		}
		defer theirs.Close()
		defer ours.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, theirs)
		tell[who] = ours
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	defer cmd.Wait()
	defer unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // both
	lines := bufio.NewScanner(out)
	close := func(who string) {
		r.t.Helper()
		if _, err := io.WriteString(tell[who], "go\n"); err != nil {
			r.t.Fatal(err)
		}
		if !lines.Scan() || lines.Text() != who {
			r.t.Fatalf("%s does not close: %q, %v", who, lines.Text(), lines.Err())
		}
	}
	r.vol.Write("f", "")
	close(first)
	r.held("f", "close() by the "+first)
	close(second)
	r.free("f", "close() by the "+second, first+second)
}

func closeKeptByExec(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := p.Open(r.a.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "exec"})
	becomes(p, lab.Call{Op: "exec", FD: fd})
	r.held("f", "exec")
	p.Kill()
	r.free("f", "the death of the program", "exec-")
}

func closeByExec(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := p.Open(r.a.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "exec"})
	becomes(p, lab.Call{Op: "exec", FD: 0})
	r.free("f", "exec", "exec-")
}

// becomes makes a call after which the agent is another program.
func becomes(a *lab.Agent, c lab.Call) {
	a.T.Helper()
	pending := a.Start(c)
	lab.Eventually(a.T, "the agent is another program", func() bool {
		select {
		case r, ok := <-pending:
			if ok {
				a.T.Fatalf("%s: %v", c.Op, r.Err())
			}
		default:
		}
		comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(a.PID()), "comm"))
		return err == nil && string(comm) == "sleep\n"
	})
}

func closeSent(r *closeRig, senderFirst bool) {
	p, q := lab.NewAgent(r.t), lab.NewAgent(r.t)
	name := filepath.Join(r.vol.Dir, "socket")
	defer os.Remove(name)
	socket := q.Must(lab.Call{Op: "listen", Path: name})
	fd := p.Open(r.a.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "send", Path: name, FD: fd})
	if senderFirst {
		p.Must(lab.Call{Op: "close", FD: fd})
		r.held("f", "close() with the descriptor on its way")
	}
	got := q.Must(lab.Call{Op: "receive", FD: socket})
	q.Must(lab.Call{Op: "write", FD: got, Data: "sent"})
	if senderFirst {
		r.held("f", "close() by the sender")
		q.Must(lab.Call{Op: "close", FD: got})
		r.free("f", "close() by the receiver", "sent-")
		return
	}
	q.Must(lab.Call{Op: "close", FD: got})
	r.held("f", "close() by the receiver")
	p.Must(lab.Call{Op: "write", FD: fd, Data: "back"})
	p.Must(lab.Call{Op: "close", FD: fd})
	r.free("f", "close() by the sender", "sentback-")
}

func closeInFlight(r *closeRig) {
	p, q := lab.NewAgent(r.t), lab.NewAgent(r.t)
	name := filepath.Join(r.vol.Dir, "socket")
	defer os.Remove(name)
	q.Must(lab.Call{Op: "listen", Path: name})
	fd := p.Open(r.a.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "sent"})
	p.Must(lab.Call{Op: "send", Path: name, FD: fd})
	p.Kill()
	r.held("f", "the death of the sender")
	q.Kill()
	r.free("f", "the death of the receiver", "sent-")
}

// mapped opens the file and maps it.
func (r *closeRig) mapped(p *lab.Agent) int {
	r.t.Helper()
	fd := p.Open(r.a.Path("f"), unix.O_RDWR)
	p.Must(lab.Call{Op: "mmap", FD: fd, N: 8192})
	p.Must(lab.Call{Op: "store", FD: fd, Data: "map"})
	return fd
}

func closeMapped(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := r.mapped(p)
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "msync", FD: fd})
	r.held("f", "close() and msync()")
	if got := r.vol.Read("f")[:4]; got != "map-" {
		r.t.Errorf("after msync() the file holds %q", got)
	}
	p.Must(lab.Call{Op: "store", FD: fd, Data: "MAP"})
	p.Must(lab.Call{Op: "munmap", FD: fd})
	r.free("f", "munmap()", "MAP-")
}

func closeUnmappedFirst(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := r.mapped(p)
	p.Must(lab.Call{Op: "munmap", FD: fd})
	r.held("f", "munmap()")
	p.Must(lab.Call{Op: "pwrite", FD: fd, Data: "fd", Off: 3})
	p.Must(lab.Call{Op: "close", FD: fd})
	r.free("f", "close() after munmap()", "mapfd-")
}

func closePartlyMapped(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := r.mapped(p)
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "unmap", FD: fd})
	r.held("f", "munmap() of one page of two")
	p.Must(lab.Call{Op: "store", FD: fd, Off: 5000, Data: "map"})
	p.Kill()
	r.free("f", "the death of the program", "map-")
	if got := r.vol.Read("f")[5000:5004]; got != "map-" {
		r.t.Errorf("the page that stayed mapped left %q", got)
	}
}

func closeMappedTwice(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := r.mapped(p)
	dup := p.Must(lab.Call{Op: "dup", FD: fd})
	p.Must(lab.Call{Op: "mmap", FD: dup, N: 4096})
	p.Must(lab.Call{Op: "close", FD: fd})
	p.Must(lab.Call{Op: "close", FD: dup})
	p.Must(lab.Call{Op: "munmap", FD: fd})
	r.held("f", "munmap() of one of two mappings")
	p.Must(lab.Call{Op: "store", FD: dup, Off: 3, Data: "two"})
	p.Must(lab.Call{Op: "munmap", FD: dup})
	r.free("f", "munmap() of the other", "maptwo-")
}

func closeKilledDirty(r *closeRig) {
	p := lab.NewAgent(r.t)
	p.Must(lab.Call{Op: "close", FD: r.mapped(p)})
	r.held("f", "close() with a mapping")
	p.Kill()
	r.free("f", "kill -9", "map-")
}

func closeKilled(r *closeRig) {
	p := lab.NewAgent(r.t)
	fd := r.mapped(p)
	p.Must(lab.Call{Op: "dup", FD: fd})
	p.Open(r.a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	last := p.Open(r.a.Path("f"), unix.O_WRONLY)
	p.Must(lab.Call{Op: "pwrite", FD: last, Data: "kill", Off: 3})
	p.Kill()
	r.free("f", "kill -9", "mapkill-")
}
