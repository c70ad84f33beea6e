package integration

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
)

// closeRig is a file that programs on mount a have open, and a program on mount
// b that tries to.
type closeRig struct {
	t     *testing.T
	vol   *volume
	a, b  *mount
	other *agent
}

// held fails the test unless path is locked.
func (r *closeRig) held(path, when string) {
	r.t.Helper()
	if o := r.other.do(call{Op: "open", Path: r.b.path(path), Flags: wronly | nonblock}); o.Errno != unix.EAGAIN {
		r.t.Fatalf("%s after %s: %v, want EAGAIN", path, when, o.Err())
	}
}

// free fails the test unless path gets free, with the bytes want.
func (r *closeRig) free(path, when, want string) {
	r.t.Helper()
	eventually(r.t, path+" is free after "+when, func() bool {
		o := r.other.do(call{Op: "open", Path: r.b.path(path), Flags: rdwr | nonblock})
		if o.Errno != 0 {
			return false
		}
		if got := r.other.do(call{Op: "pread", FD: o.N, N: len(want)}); got.Data != want {
			r.t.Errorf("%s holds %q after %s, want %q", path, got.Data, when, want)
		}
		r.other.must(call{Op: "close", FD: o.N})
		return true
	})
	eventually(r.t, "no entry is left after "+when, func() bool { return len(r.vol.ls()) == 0 })
}

// The lock of an open file lives until its last reference is gone, whatever
// kind of reference that is and whoever has it, and no longer;
// who is granted it then sees all that was written before.
func TestCloseMatrix(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	r := &closeRig{t: t, vol: v, a: v.mount("a"), b: v.mount("b"), other: newAgent(t)}
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
			v.write("f", strings.Repeat("-", 8192))
			sub := *r
			sub.t = t
			c.run(&sub)
		})
	}
}

func closeDupFirst(r *closeRig) {
	p := newAgent(r.t)
	fd := p.open(r.a.path("f"), wronly)
	dup := p.must(call{Op: "dup", FD: fd})
	p.must(call{Op: "close", FD: dup})
	r.held("f", "close() of the duplicate")
	p.must(call{Op: "write", FD: fd, Data: "dup"})
	p.must(call{Op: "close", FD: fd})
	r.free("f", "close() of the original", "dup-")
}

func closeByDup2(r *closeRig) {
	r.vol.write("g", "---")
	p := newAgent(r.t)
	f, g := p.open(r.a.path("f"), wronly), p.open(r.a.path("g"), wronly)
	p.must(call{Op: "write", FD: g, Data: "g"})
	p.must(call{Op: "dup2", FD: f, N: g})
	r.held("f", "dup2")
	eventually(r.t, "g is free", func() bool { return len(r.vol.ls()) == 1 })
	p.must(call{Op: "close", FD: f})
	r.held("f", "close() of the original")
	p.must(call{Op: "write", FD: g, Data: "f"})
	p.must(call{Op: "close", FD: g})
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
	cmd := exec.Command("perl", "-e", forker, r.a.path("f"))
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
	r.vol.write("f", "")
	close(first)
	r.held("f", "close() by the "+first)
	close(second)
	r.free("f", "close() by the "+second, first+second)
}

func closeKeptByExec(r *closeRig) {
	p := newAgent(r.t)
	fd := p.open(r.a.path("f"), wronly)
	p.must(call{Op: "write", FD: fd, Data: "exec"})
	p.becomes(call{Op: "exec", FD: fd})
	r.held("f", "exec")
	p.kill()
	r.free("f", "the death of the program", "exec-")
}

func closeByExec(r *closeRig) {
	p := newAgent(r.t)
	fd := p.open(r.a.path("f"), wronly)
	p.must(call{Op: "write", FD: fd, Data: "exec"})
	p.becomes(call{Op: "exec", FD: 0})
	r.free("f", "exec", "exec-")
}

// becomes makes a call after which the agent is another program.
func (a *agent) becomes(c call) {
	a.t.Helper()
	pending := a.start(c)
	eventually(a.t, "the agent is another program", func() bool {
		select {
		case r, ok := <-pending:
			if ok {
				a.t.Fatalf("%s: %v", c.Op, r.Err())
			}
		default:
		}
		comm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(a.pid()), "comm"))
		return err == nil && string(comm) == "sleep\n"
	})
}

func closeSent(r *closeRig, senderFirst bool) {
	p, q := newAgent(r.t), newAgent(r.t)
	name := filepath.Join(r.vol.dir, "socket")
	defer os.Remove(name)
	socket := q.must(call{Op: "listen", Path: name})
	fd := p.open(r.a.path("f"), wronly)
	p.must(call{Op: "send", Path: name, FD: fd})
	if senderFirst {
		p.must(call{Op: "close", FD: fd})
		r.held("f", "close() with the descriptor on its way")
	}
	got := q.must(call{Op: "receive", FD: socket})
	q.must(call{Op: "write", FD: got, Data: "sent"})
	if senderFirst {
		r.held("f", "close() by the sender")
		q.must(call{Op: "close", FD: got})
		r.free("f", "close() by the receiver", "sent-")
		return
	}
	q.must(call{Op: "close", FD: got})
	r.held("f", "close() by the receiver")
	p.must(call{Op: "write", FD: fd, Data: "back"})
	p.must(call{Op: "close", FD: fd})
	r.free("f", "close() by the sender", "sentback-")
}

func closeInFlight(r *closeRig) {
	p, q := newAgent(r.t), newAgent(r.t)
	name := filepath.Join(r.vol.dir, "socket")
	defer os.Remove(name)
	q.must(call{Op: "listen", Path: name})
	fd := p.open(r.a.path("f"), wronly)
	p.must(call{Op: "write", FD: fd, Data: "sent"})
	p.must(call{Op: "send", Path: name, FD: fd})
	p.kill()
	r.held("f", "the death of the sender")
	q.kill()
	r.free("f", "the death of the receiver", "sent-")
}

// mapped opens the file and maps it.
func (r *closeRig) mapped(p *agent) int {
	r.t.Helper()
	fd := p.open(r.a.path("f"), rdwr)
	p.must(call{Op: "mmap", FD: fd, N: 8192})
	p.must(call{Op: "store", FD: fd, Data: "map"})
	return fd
}

func closeMapped(r *closeRig) {
	p := newAgent(r.t)
	fd := r.mapped(p)
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "msync", FD: fd})
	r.held("f", "close() and msync()")
	if got := r.vol.read("f")[:4]; got != "map-" {
		r.t.Errorf("after msync() the file holds %q", got)
	}
	p.must(call{Op: "store", FD: fd, Data: "MAP"})
	p.must(call{Op: "munmap", FD: fd})
	r.free("f", "munmap()", "MAP-")
}

func closeUnmappedFirst(r *closeRig) {
	p := newAgent(r.t)
	fd := r.mapped(p)
	p.must(call{Op: "munmap", FD: fd})
	r.held("f", "munmap()")
	p.must(call{Op: "pwrite", FD: fd, Data: "fd", Off: 3})
	p.must(call{Op: "close", FD: fd})
	r.free("f", "close() after munmap()", "mapfd-")
}

func closePartlyMapped(r *closeRig) {
	p := newAgent(r.t)
	fd := r.mapped(p)
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "unmap", FD: fd})
	r.held("f", "munmap() of one page of two")
	p.must(call{Op: "store", FD: fd, Off: 5000, Data: "map"})
	p.kill()
	r.free("f", "the death of the program", "map-")
	if got := r.vol.read("f")[5000:5004]; got != "map-" {
		r.t.Errorf("the page that stayed mapped left %q", got)
	}
}

func closeMappedTwice(r *closeRig) {
	p := newAgent(r.t)
	fd := r.mapped(p)
	dup := p.must(call{Op: "dup", FD: fd})
	p.must(call{Op: "mmap", FD: dup, N: 4096})
	p.must(call{Op: "close", FD: fd})
	p.must(call{Op: "close", FD: dup})
	p.must(call{Op: "munmap", FD: fd})
	r.held("f", "munmap() of one of two mappings")
	p.must(call{Op: "store", FD: dup, Off: 3, Data: "two"})
	p.must(call{Op: "munmap", FD: dup})
	r.free("f", "munmap() of the other", "maptwo-")
}

func closeKilledDirty(r *closeRig) {
	p := newAgent(r.t)
	p.must(call{Op: "close", FD: r.mapped(p)})
	r.held("f", "close() with a mapping")
	p.kill()
	r.free("f", "kill -9", "map-")
}

func closeKilled(r *closeRig) {
	p := newAgent(r.t)
	fd := r.mapped(p)
	p.must(call{Op: "dup", FD: fd})
	p.open(r.a.path("f"), wronly|appends)
	last := p.open(r.a.path("f"), wronly)
	p.must(call{Op: "pwrite", FD: last, Data: "kill", Off: 3})
	p.kill()
	r.free("f", "kill -9", "mapkill-")
}

// sendFD sends a descriptor to the socket of the name path.
func sendFD(path string, fd int) error {
	s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	return unix.Sendmsg(s, []byte("x"), unix.UnixRights(fd), &unix.SockaddrUnix{Name: path}, 0)
}

// receiveFD returns a descriptor that was sent to the socket s.
func receiveFD(s int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(s, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return -1, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return -1, err
	}
	return fds[0], nil
}
