package semantics

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// open(O_CREAT) opens what is there or makes it, while another mount makes and
// removes it. Programs once got ESTALE, or EBUSY within milliseconds: 19 of 100.
//
// The kernel looks again once in a system call: when the file comes and goes
// twice meanwhile (2 of 1200 here) the program is told.
func TestCreateChurn(t *testing.T) { lab.Over(t, testCreateChurn, lab.Local, lab.OnNetworkVolume) }

func testCreateChurn(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--name-wait", "30s") // on a slow volume the file is held for long
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	q.Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{
		{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL},
		{Op: "close", FD: lab.Opened},
		{Op: "unlink", Path: b.Path("f")},
	}})
	failed := p.Repeat(100,
		lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT},
		lab.Call{Op: "close", FD: lab.Opened},
	)
	known := failed["open EBUSY"] + failed["open ESTALE"]
	delete(failed, "open EBUSY")
	delete(failed, "open ESTALE")
	delete(failed, "open ESTALE late") // the machine is slow
	delete(failed, "close EBADF")      // of what was not opened
	if len(failed) != 0 || known > 3 {
		t.Errorf("failed: %v, and %d with EBUSY or ESTALE", failed, known)
	}
}

// A file that its holders replace by rename is opened by the programs in line
// for it, on this mount and on another. They once ran out of attempts, and got
// ESTALE or EBUSY within milliseconds. As above, a program is told if the file is
// replaced twice while the kernel looks.
func TestReplaceChurn(t *testing.T) { lab.Over(t, testReplaceChurn, lab.Local, lab.OnNetworkVolume) }

func testReplaceChurn(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "x")
	p := lab.NewAgent(t)
	for _, tmp := range []string{a.Path("tmp1"), a.Path("tmp2")} {
		lab.NewAgent(t).Start(lab.Call{Op: "repeat", N: -1, Calls: []lab.Call{
			{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY},
			{Op: "open", Path: tmp, Flags: unix.O_WRONLY | unix.O_CREAT},
			{Op: "write", FD: lab.Opened, Data: "x"},
			{Op: "close", FD: lab.Opened},
			{Op: "rename", Path: tmp, Path2: a.Path("f")},
			{Op: "close", FD: lab.Opened},
		}})
	}
	failed := p.Repeat(60,
		lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY | unix.O_APPEND},
		lab.Call{Op: "close", FD: lab.Opened},
	)
	known := failed["open ESTALE"]
	delete(failed, "open ESTALE")
	delete(failed, "open ESTALE late") // the machine is slow
	delete(failed, "close EBADF")      // of what was not opened
	if len(failed) != 0 || known > 3 {
		t.Errorf("failed: %v, and %d with ESTALE", failed, known)
	}
}

// EDEADLK is for programs that would wait for themselves. What counts is which process has the
// file now, not which once opened it. The opener's child waits (here: for all of --wait)
// once the opener has handed its descriptor on; a program that went into the
// background and opens its own file again is told so.
func TestDeadlockIsOfWhoHasTheFile(t *testing.T) {
	t.Parallel()
	// On a slow machine it takes longer than --wait to find who has the file. Its name is its errno.
	v := lab.NewVolume(t, "--wait", "10s", "--rule", fmt.Sprintf("/%d lock wait=1m", unix.EDEADLK))
	a := v.Mount("a")
	for _, c := range []struct {
		who  string
		prog []string
		want syscall.Errno
	}{
		{"the child of an opener who has handed the file on", []string{"sh", "-c", `
			exec 3>>"$1"; sleep 1000 >/dev/null 2>&1 & exec 3>&-
			perl -e 'open(F, ">>", shift) or print $!+0' "$1"; kill $!`, "sh"}, unix.EBUSY},
		{"a daemon that opens its own file again", []string{"perl", "-e", `
			open(F, ">>", $ARGV[0]) or die $!;
			$parent = $$; fork and exit;
			select(undef, undef, undef, 0.01) while getppid == $parent;
			open(G, ">>", $ARGV[0]) or print $!+0`}, unix.EDEADLK},
	} {
		out, err := exec.Command(c.prog[0], append(c.prog[1:], a.Path(strconv.Itoa(int(c.want))))...).CombinedOutput()
		if err != nil || string(out) != strconv.Itoa(int(c.want)) {
			t.Errorf("%s gets %q, %v; want %d (%v)", c.who, out, err, int(c.want), c.want)
		}
	}
}

// An append-only file (chattr +a) can be appended to through the view, as
// below; not changed otherwise. Without O_APPEND, which lockfs keeps from the
// file below, it once could not be opened at all.
func TestAppendOnlyFile(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	v.Write("log", "one\n")
	f, err := os.Open(v.InSource("log"))
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
	a := v.Mount("a")
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("log"), unix.O_WRONLY|unix.O_APPEND)
	p.Must(lab.Call{Op: "write", FD: fd, Data: "two\n"})
	p.Must(lab.Call{Op: "close", FD: fd})
	for _, c := range []lab.Call{
		{Op: "open", Path: a.Path("log"), Flags: unix.O_WRONLY},
		{Op: "open", Path: a.Path("log"), Flags: unix.O_WRONLY | unix.O_APPEND | unix.O_TRUNC},
		{Op: "truncate", Path: a.Path("log")},
		{Op: "unlink", Path: a.Path("log")},
		{Op: "rename", Path: a.Path("log"), Path2: a.Path("old")},
	} {
		p.Fails(c, unix.EPERM)
	}
	// What is stored in a mapping once was put at the file's end. It does not stay
	// in the cache either, which is kept from open to open of a file of some age.
	lab.Eventually(t, "the kernel keeps what it caches of the file", func() bool {
		var st unix.Stat_t
		return unix.Stat(v.InSource("log"), &st) == nil && time.Since(time.Unix(st.Ctim.Unix())) > 2*time.Second
	})
	if got, err := os.ReadFile(a.Path("log")); err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("the view's file holds %q, %v", got, err)
	}
	fd = p.Open(a.Path("log"), unix.O_RDWR|unix.O_APPEND)
	p.Must(lab.Call{Op: "mmap", FD: fd, N: 3})
	p.Must(lab.Call{Op: "store", FD: fd, Data: "ONE"})
	p.Fails(lab.Call{Op: "msync", FD: fd}, unix.EPERM)
	p.Must(lab.Call{Op: "munmap", FD: fd})
	p.Must(lab.Call{Op: "close", FD: fd})
	for _, path := range []string{v.InSource("log"), a.Path("log")} {
		if got, err := os.ReadFile(path); err != nil || string(got) != "one\ntwo\n" {
			t.Errorf("%s holds %q, %v", path, got, err)
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// An open that fails with the backing's ESTALE, as on NFS, leaves nothing
// locked. Its lock once stayed for ever. The kernel knows the errno as its own and
// comes back once; the program gets EIO.
func TestBackingAnswersESTALE(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	var forgot atomic.Bool
	v.Under(func(n lab.Below) gofs.InodeEmbedder { return &staleOpens{n, &forgot} })
	a := v.Mount("a")
	v.Write("f", "x")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	forgot.Store(true)
	for _, flags := range []int{unix.O_WRONLY, unix.O_WRONLY | unix.O_TRUNC, unix.O_RDONLY | unix.O_TRUNC, unix.O_RDWR | unix.O_APPEND} {
		p.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: flags}, unix.EIO)
	}
	p.Fails(lab.Call{Op: "truncate", Path: a.Path("f")}, unix.ESTALE)
	forgot.Store(false)
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
	q.Must(lab.Call{Op: "close", FD: q.Open(a.Path("f"), unix.O_WRONLY|unix.O_NONBLOCK)})
	if got := v.Read("f"); got != "x" {
		t.Errorf("the file holds %q", got)
	}
}

// A program that catches a signal every millisecond, a profiler's, sees what it
// would see on a local disk: nobody contends, and no call fails with EINTR. They
// once did, because a lock takes longer than that.
func TestNoEINTRWithoutContention(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	p := lab.NewAgent(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.Signal()
			case <-stop:
				return
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	f, g, h := a.Path("f"), a.Path("g"), a.Path("h")
	const rounds = 25
	for done := 0; done < rounds; {
		began := time.Now()
		failed := p.Repeat(1,
			lab.Call{Op: "open", Path: f, Flags: unix.O_WRONLY | unix.O_CREAT},
			lab.Call{Op: "write", FD: lab.Opened, Data: "x"},
			lab.Call{Op: "close", FD: lab.Opened},
			lab.Call{Op: "open", Path: f, Flags: unix.O_WRONLY | unix.O_APPEND},
			lab.Call{Op: "close", FD: lab.Opened},
			lab.Call{Op: "truncate", Path: f},
			lab.Call{Op: "rename", Path: f, Path2: g},
			lab.Call{Op: "link", Path: g, Path2: h},
			lab.Call{Op: "unlink", Path: g},
			lab.Call{Op: "unlink", Path: h},
		)
		switch {
		case len(failed) == 0:
			done++
		case time.Since(began) < time.Second: // after a second without the lock service an open may be interrupted
			t.Fatalf("failed: %v", failed)
		}
	}
}
