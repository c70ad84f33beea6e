package integration

import (
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// open(O_CREAT) opens what is there or makes it, while another mount makes and
// removes it. Programs once got ESTALE, or EBUSY within milliseconds: 19 of 100.
//
// The kernel looks again once in a system call: when the file comes and goes
// twice meanwhile (2 of 1200 here) the program is told.
func TestCreateChurn(t *testing.T) { over(t, testCreateChurn, local, onNetworkVolume) }

func testCreateChurn(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	q.start(call{Op: "repeat", N: -1, Calls: []call{
		{Op: "open", Path: b.path("f"), Flags: wronly | create | unix.O_EXCL},
		{Op: "close", FD: opened},
		{Op: "unlink", Path: b.path("f")},
	}})
	r := p.do(call{Op: "repeat", N: 100, Calls: []call{
		{Op: "open", Path: a.path("f"), Flags: wronly | create},
		{Op: "close", FD: opened},
	}})
	known := r.Failed["open EBUSY"] + r.Failed["open ESTALE"]
	delete(r.Failed, "open EBUSY")
	delete(r.Failed, "open ESTALE")
	delete(r.Failed, "close EBADF") // of what was not opened
	if len(r.Failed) != 0 || known > 3 {
		t.Errorf("failed: %v, and %d with EBUSY or ESTALE", r.Failed, known)
	}
}

// A file that its holders replace by rename is opened by those who wait in line
// for it, on this mount and on another. They once ran out of attempts, and got
// ESTALE or EBUSY within milliseconds.
func TestReplaceChurn(t *testing.T) { over(t, testReplaceChurn, local, onNetworkVolume) }

func testReplaceChurn(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "x")
	p := newAgent(t)
	for _, tmp := range []string{a.path("tmp1"), a.path("tmp2")} {
		newAgent(t).start(call{Op: "repeat", N: -1, Calls: []call{
			{Op: "open", Path: a.path("f"), Flags: wronly},
			{Op: "open", Path: tmp, Flags: wronly | create},
			{Op: "write", FD: opened, Data: "x"},
			{Op: "close", FD: opened},
			{Op: "rename", Path: tmp, Path2: a.path("f")},
			{Op: "close", FD: opened},
		}})
	}
	r := p.do(call{Op: "repeat", N: 60, Calls: []call{
		{Op: "open", Path: b.path("f"), Flags: wronly | appends},
		{Op: "close", FD: opened},
	}})
	if len(r.Failed) != 0 {
		t.Errorf("failed: %v", r.Failed)
	}
}

// EDEADLK is for those who would wait for themselves: who has the file counts,
// not who once opened it. The opener's child waits (here: for all of --wait)
// once the opener has handed its descriptor on; a program that went into the
// background and opens its own file again is told so.
func TestDeadlockIsOfWhoHasTheFile(t *testing.T) {
	v := newVolume(t, "--wait", "200ms")
	v.inMemory()
	a := v.mount("a")
	for _, c := range []struct {
		who  string
		prog []string
		want syscall.Errno
	}{
		{"the child of an opener who has handed the file on", []string{"sh", "-c", `
			exec 3>>"$1"; sleep 10 >/dev/null 2>&1 & exec 3>&-
			perl -e 'open(F, ">>", shift) or print $!+0' "$1"; kill $!`, "sh"}, unix.EBUSY},
		{"a daemon that opens its own file again", []string{"perl", "-e", `
			open(F, ">>", $ARGV[0]) or die $!;
			$parent = $$; fork and exit;
			select(undef, undef, undef, 0.01) while getppid == $parent;
			open(G, ">>", $ARGV[0]) or print $!+0`}, unix.EDEADLK},
	} {
		out, err := exec.Command(c.prog[0], append(c.prog[1:], a.path(strconv.Itoa(int(c.want))))...).CombinedOutput()
		if err != nil || string(out) != strconv.Itoa(int(c.want)) {
			t.Errorf("%s gets %q, %v; want %d (%v)", c.who, out, err, int(c.want), c.want)
		}
	}
}

// An append-only file (chattr +a) can be appended to through the view, as
// below; not changed otherwise. Without O_APPEND, which lockfs keeps from the
// file below, it once could not be opened at all.
func TestAppendOnlyFile(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	v.write("log", "one\n")
	f, err := os.Open(v.inSource("log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const appendOnly = 0x20 // FS_APPEND_FL
	old, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, old|appendOnly)
	}
	if err != nil {
		t.Skip("the file system has no append-only files: ", err)
	}
	defer func() {
		if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, old); err != nil {
			t.Error(err)
		}
	}()
	a := v.mount("a")
	p := newAgent(t)
	fd := p.open(a.path("log"), wronly|appends)
	p.must(call{Op: "write", FD: fd, Data: "two\n"})
	p.must(call{Op: "close", FD: fd})
	for _, c := range []call{
		{Op: "open", Path: a.path("log"), Flags: wronly},
		{Op: "open", Path: a.path("log"), Flags: wronly | appends | trunc},
		{Op: "truncate", Path: a.path("log")},
		{Op: "unlink", Path: a.path("log")},
		{Op: "rename", Path: a.path("log"), Path2: a.path("old")},
	} {
		p.fails(c, unix.EPERM)
	}
	// What is stored in a mapping once was put at the file's end. It does not stay
	// in the cache either, which is kept from open to open of a file of some age.
	eventually(t, "the kernel keeps what it caches of the file", func() bool {
		var st unix.Stat_t
		return unix.Stat(v.inSource("log"), &st) == nil && time.Since(time.Unix(st.Ctim.Unix())) > 2*time.Second
	})
	if got, err := os.ReadFile(a.path("log")); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("the view's file holds %q, %v", got, err)
	}
	fd = p.open(a.path("log"), rdwr|appends)
	p.must(call{Op: "mmap", FD: fd, N: 3})
	p.must(call{Op: "store", FD: fd, Data: "ONE"})
	p.fails(call{Op: "msync", FD: fd}, unix.EPERM)
	p.must(call{Op: "munmap", FD: fd})
	p.must(call{Op: "close", FD: fd})
	for _, path := range []string{v.inSource("log"), a.path("log")} {
		if got, err := os.ReadFile(path); err != nil || string(got) != "one\ntwo\n" {
			t.Errorf("%s holds %q, %v", path, got, err)
		}
	}
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// An open that fails with the backing's ESTALE, as on NFS, leaves nothing
// locked. Its lock once stayed for ever. The kernel knows the errno as its own and
// comes back once; the program gets EIO.
func TestBackingAnswersESTALE(t *testing.T) {
	v := newVolume(t, "--embedded")
	v.inMemory()
	var forgot atomic.Bool
	v.under(func(n below) gofs.InodeEmbedder { return &staleOpens{n, &forgot} })
	a := v.mount("a")
	v.write("f", "x")
	p, q := newAgent(t), newAgent(t)
	forgot.Store(true)
	for _, flags := range []int{wronly, wronly | trunc, rdonly | trunc, rdwr | appends} {
		p.fails(call{Op: "open", Path: a.path("f"), Flags: flags}, unix.EIO)
	}
	p.fails(call{Op: "truncate", Path: a.path("f")}, unix.ESTALE)
	forgot.Store(false)
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
	q.must(call{Op: "close", FD: q.open(a.path("f"), wronly|nonblock)})
	if got := v.read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}

// A program that catches a signal every millisecond, a profiler's, sees what it
// would see on a local disk: nobody contends, and no call fails with EINTR. They
// once did, because a lock takes longer than that.
func TestNoEINTRWithoutContention(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a := v.mount("a")
	p := newAgent(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.signal()
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	f, g, h := a.path("f"), a.path("g"), a.path("h")
	r := p.do(call{Op: "repeat", N: 25, Calls: []call{
		{Op: "open", Path: f, Flags: wronly | create},
		{Op: "write", FD: opened, Data: "x"},
		{Op: "close", FD: opened},
		{Op: "open", Path: f, Flags: wronly | appends},
		{Op: "close", FD: opened},
		{Op: "truncate", Path: f},
		{Op: "rename", Path: f, Path2: g},
		{Op: "link", Path: g, Path2: h},
		{Op: "unlink", Path: g},
		{Op: "unlink", Path: h},
	}})
	if len(r.Failed) != 0 {
		t.Errorf("failed: %v", r.Failed)
	}
}
