package semantics

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// With --read-locks readers share a file and exclude writers, on every
// mount, until the last of them has closed it. A writer who waits is not
// overtaken by later readers. (docs/SEMANTICS.md, rule 24.)
func TestReadLocks(t *testing.T) { lab.Over(t, testReadLocks, lab.Local, lab.InLeases) }

func testReadLocks(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--read-locks", "--wait", "-1")
	a, b, c := v.Mount("a"), v.Mount("b"), v.Mount("c")
	v.Write("f", "old")
	v.Write("other", "")
	reader, other, writer, late := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fd := reader.Open(a.Path("f"), unix.O_RDONLY)
	fd2 := other.Open(b.Path("f"), unix.O_RDONLY)
	for _, m := range []*lab.Mount{a, b, c} {
		refusedAll(t, writer, m, "f")
	}
	pending := writer.Start(lab.Call{Op: "open", Path: c.Path("f"), Flags: unix.O_WRONLY})
	lab.Eventually(t, "the writer waits", func() bool { return v.Waiting("f") == 1 })
	late.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	if r := reader.Do(lab.Call{Op: "pread", FD: fd, N: 10}); r.Data != "old" {
		t.Errorf("a reader reads %q, %v", r.Data, r.Err())
	}
	reader.Must(lab.Call{Op: "close", FD: fd})
	other.Must(lab.Call{Op: "close", FD: fd2})
	r := lab.Await(t, "the open of the writer", pending)
	if r.Errno != 0 {
		t.Fatal(r.Err())
	}
	late.Fails(lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY | unix.O_NONBLOCK}, unix.EAGAIN)
	writer.Must(lab.Call{Op: "pwrite", FD: r.N, Data: "new"})
	writer.Must(lab.Call{Op: "close", FD: r.N})
	if r := late.Do(lab.Call{Op: "pread", FD: late.Open(a.Path("f"), unix.O_RDONLY), N: 10}); r.Data != "new" {
		t.Errorf("the next reader reads %q, %v", r.Data, r.Err())
	}
	// A reader may make the file.
	fd = reader.Open(a.Path("made"), unix.O_RDONLY|unix.O_CREAT)
	for _, m := range []*lab.Mount{a, b, c} {
		refusedAll(t, writer, m, "made")
	}
	reader.Must(lab.Call{Op: "close", FD: fd})
	writer.Must(lab.Call{Op: "close", FD: writer.Open(c.Path("made"), unix.O_WRONLY)})
}

// A program that reads a file, closes it and removes or replaces it is not in
// its own way; nor is one that writes what it has open for read.
func TestReadLocksOfOneProgram(t *testing.T) {
	lab.Over(t, testReadLocksOfOneProgram, lab.Local, lab.InLeases.ForLong())
}

func testReadLocksOfOneProgram(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--read-locks")
	a := v.Mount("a")
	p := lab.NewAgent(t)
	p.Rounds(100, 0,
		lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_WRONLY | unix.O_CREAT},
		lab.Call{Op: "close", FD: lab.Opened},
		lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDONLY},
		lab.Call{Op: "open", Path: a.Path("f"), Flags: unix.O_RDWR},
		lab.Call{Op: "write", FD: lab.Opened, Data: "x"},
		lab.Call{Op: "rename", Path: a.Path("f"), Path2: a.Path("g")},
		lab.Call{Op: "close", FD: lab.Opened},
		lab.Call{Op: "close", FD: lab.Opened},
		lab.Call{Op: "open", Path: a.Path("g"), Flags: unix.O_RDONLY | unix.O_TRUNC},
		lab.Call{Op: "close", FD: lab.Opened},
		lab.Call{Op: "unlink", Path: a.Path("g")},
	)
	// A child that would wait for what its parent reads waits for ever.
	fd := p.Open(a.Path("h"), unix.O_WRONLY|unix.O_CREAT)
	p.Must(lab.Call{Op: "close", FD: fd})
	lab.Run(t, "sh", "-c", `exec 3<"$1"; sh -c ': >>"$1"' sh "$1" && exit 1; exit 0`, "sh", a.Path("h"))
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// To change a file's flags by path the kernel opens the file under the inode's lock, which the writer
// needs: that open does not wait, and the writer goes on.
func TestReadLocksOfTheKernelsOpen(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--read-locks", "--wait", "-1", "--name-wait", "100ms")
	a := v.Mount("a")
	v.Write("f", "")
	writer, p := lab.NewAgent(t), lab.NewAgent(t)
	change := lab.Call{Op: "file_setattr", Path: a.Path("f")}
	if p.Do(change).Errno == unix.ENOSYS {
		t.Skip("this kernel has no file_setattr")
	}
	fd := writer.Open(a.Path("f"), unix.O_WRONLY)
	p.Fails(change, unix.EBUSY)
	writer.Must(lab.Call{Op: "write", FD: fd, Data: "data"})
	writer.Must(lab.Call{Op: "close", FD: fd})
	lab.Eventually(t, "nothing is in the way", func() bool { return p.Do(change).Errno != unix.EBUSY })
}

// A reader whose lock is lost reads no more: somebody may be writing.
func TestLostReadLock(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--read-locks")
	a := v.Mount("a")
	v.Write("f", "data")
	v.Write("emptied", "data")
	p := lab.NewAgent(t)
	fd := p.Open(a.Path("f"), unix.O_RDONLY)
	others := []int{
		p.Open(a.Path("made"), unix.O_RDONLY|unix.O_CREAT),
		p.Open(a.Path("emptied"), unix.O_RDONLY|unix.O_TRUNC),
	}
	for _, name := range []string{"made", "emptied"} { // an empty file is not read
		writer := p.Open(a.Path(name), unix.O_WRONLY)
		p.Must(lab.Call{Op: "write", FD: writer, Data: "data"})
		p.Must(lab.Call{Op: "close", FD: writer})
	}
	v.RevokeSession(v.LS()[0].Session)
	lab.Eventually(t, "the reader gets EIO", func() bool {
		return p.Do(lab.Call{Op: "pread", FD: fd, N: 4}).Errno == unix.EIO
	})
	for _, other := range others {
		p.Fails(lab.Call{Op: "pread", FD: other, N: 4}, unix.EIO)
	}
	p.Fails(lab.Call{Op: "seek", FD: fd, Flags: unix.SEEK_DATA}, unix.EIO)
	to := p.Open(a.Path("copy"), unix.O_WRONLY|unix.O_CREAT) // under a lock that is good
	p.Fails(lab.Call{Op: "copy to", FD: fd, Flags: to, N: 4}, unix.EIO)
	if got := v.Read("copy"); got != "" {
		t.Errorf("%q was copied", got)
	}
	p.Must(lab.Call{Op: "close", FD: fd})
}
