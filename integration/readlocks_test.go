package integration

import (
	"testing"

	"golang.org/x/sys/unix"
)

// With --read-locks readers share a file and exclude those who write, on every
// mount, until the last of them has closed it. A writer who waits is not
// overtaken by later readers. (docs/SEMANTICS.md, rule 24.)
func TestReadLocks(t *testing.T) { over(t, testReadLocks, local, inLeases) }

func testReadLocks(t *testing.T, on setup) {
	v := on.newVolume(t, "--read-locks", "--wait", "-1")
	v.inMemory()
	a, b, c := v.mount("a"), v.mount("b"), v.mount("c")
	v.write("f", "old")
	v.write("other", "")
	reader, other, writer, late := newAgent(t), newAgent(t), newAgent(t), newAgent(t)
	fd := reader.open(a.path("f"), rdonly)
	fd2 := other.open(b.path("f"), rdonly)
	for _, m := range []*mount{a, b, c} {
		refusedAll(t, writer, m, "f")
	}
	pending := writer.start(call{Op: "open", Path: c.path("f"), Flags: wronly})
	eventually(t, "the writer waits", func() bool { return v.waiting("f") == 1 })
	late.fails(call{Op: "open", Path: a.path("f"), Flags: rdonly | nonblock}, unix.EAGAIN)
	if r := reader.do(call{Op: "pread", FD: fd, N: 10}); r.Data != "old" {
		t.Errorf("a reader reads %q, %v", r.Data, r.Err())
	}
	reader.must(call{Op: "close", FD: fd})
	other.must(call{Op: "close", FD: fd2})
	r := await(t, "the open of the writer", pending)
	if r.Errno != 0 {
		t.Fatal(r.Err())
	}
	late.fails(call{Op: "open", Path: a.path("f"), Flags: rdonly | nonblock}, unix.EAGAIN)
	writer.must(call{Op: "pwrite", FD: r.N, Data: "new"})
	writer.must(call{Op: "close", FD: r.N})
	if r := late.do(call{Op: "pread", FD: late.open(a.path("f"), rdonly), N: 10}); r.Data != "new" {
		t.Errorf("the next reader reads %q, %v", r.Data, r.Err())
	}
}

// A program that reads a file, closes it and removes or replaces it is not in
// its own way; nor is one that writes what it has open for read.
func TestReadLocksOfOneProgram(t *testing.T) {
	over(t, testReadLocksOfOneProgram, local, inLeases.forLong())
}

func testReadLocksOfOneProgram(t *testing.T, on setup) {
	v := on.newVolume(t, "--read-locks")
	v.inMemory()
	a := v.mount("a")
	p := newAgent(t)
	r := p.do(call{Op: "repeat", N: 100, Calls: []call{
		{Op: "open", Path: a.path("f"), Flags: wronly | create},
		{Op: "close", FD: opened},
		{Op: "open", Path: a.path("f"), Flags: rdonly},
		{Op: "open", Path: a.path("f"), Flags: rdwr},
		{Op: "write", FD: opened, Data: "x"},
		{Op: "rename", Path: a.path("f"), Path2: a.path("g")},
		{Op: "close", FD: opened},
		{Op: "close", FD: opened},
		{Op: "open", Path: a.path("g"), Flags: rdonly | trunc},
		{Op: "close", FD: opened},
		{Op: "unlink", Path: a.path("g")},
	}})
	if len(r.Failed) != 0 {
		t.Errorf("failed: %v", r.Failed)
	}
	// A child that would wait for what its parent reads waits for ever.
	fd := p.open(a.path("h"), wronly|create)
	p.must(call{Op: "close", FD: fd})
	run(t, "sh", "-c", `exec 3<"$1"; sh -c ': >>"$1"' sh "$1" && exit 1; exit 0`, "sh", a.path("h"))
	eventually(t, "nothing stays locked", func() bool { return len(v.ls()) == 0 })
}

// A reader whose lock is lost reads no more: somebody may be writing.
func TestLostReadLock(t *testing.T) {
	v := newVolume(t, "--read-locks")
	v.inMemory()
	a := v.mount("a")
	v.write("f", "data")
	p := newAgent(t)
	fd := p.open(a.path("f"), rdonly)
	v.revoke()
	eventually(t, "the reader gets EIO", func() bool {
		return p.do(call{Op: "pread", FD: fd, N: 4}).Errno == unix.EIO
	})
	p.fails(call{Op: "seek", FD: fd, Flags: unix.SEEK_DATA}, unix.EIO)
	to := p.open(a.path("copy"), wronly|create) // under a lock that is good
	p.fails(call{Op: "copy to", FD: fd, Flags: to, N: 4}, unix.EIO)
	if got := v.read("copy"); got != "" {
		t.Errorf("%q was copied", got)
	}
	p.must(call{Op: "close", FD: fd})
}
