package integration

import (
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// A writer goes to the file's end by SEEK_END, and finds the one that the last
// writer left. Of two replies that overlap, of listings say, the kernel keeps
// the first to arrive and drops the other: if that one is newer, the mount
// believes the kernel to know what it does not. Records were once written over
// one another so.
func TestSeekEndAfterOverlappingReplies(t *testing.T) {
	v := newVolume(t, "--embedded")
	v.inMemory()
	stats := newTurnstile(t)
	v.under(func(n below) gofs.InodeEmbedder { return &heldStats{n, stats} })
	a, b := v.mount("a"), v.mount("b")
	t.Cleanup(stats.end)
	v.write("f", "one\n")
	appender, early, late, writer := newAgent(t), newAgent(t), newAgent(t), newAgent(t)
	fds := make(map[*agent]int)
	for _, p := range []*agent{early, late, writer} {
		fds[p] = p.open(b.path("f"), rdonly)
	}
	ask := func(p *agent) (<-chan result, func()) {
		t.Helper()
		stats.shut.Store(true)
		defer stats.shut.Store(false)
		return p.start(call{Op: "ask for size", FD: fds[p]}), stats.next()
	}
	before, letBefore := ask(early)
	end := appender.open(a.path("f"), wronly|appends)
	appender.must(call{Op: "write", FD: end, Data: "two\n"})
	appender.must(call{Op: "close", FD: end})
	after, letAfter := ask(late)
	letBefore()
	if r := await(t, "the early question", before); r.N != 4 {
		t.Fatalf("the early question got %d, %v", r.N, r.Err())
	}
	letAfter()
	if r := await(t, "the late question", after); r.Errno != 0 {
		t.Fatal(r.Errno)
	}
	fd := writer.open(procFD(fds[writer]), rdwr) // looks nothing up
	writer.must(call{Op: "write at end", FD: fd, Data: "three\n"})
	writer.must(call{Op: "close", FD: fd})
	if got := v.read("f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A file has grown and its directory has another name when a program opens it
// that knows it by a descriptor. Each is worth an ESTALE to the kernel, which
// bears one in a system call: the second once reached the program. It gets the
// file, and sees all of it.
func TestOneESTALE(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	p, q := newAgent(t), newAgent(t)
	q.must(call{Op: "mkdir", Path: b.path("d")})
	v.write("d/f", "one\n")
	fd := p.open(a.path("d/f"), rdonly)
	grow := q.open(b.path("d/f"), wronly|appends)
	q.must(call{Op: "write", FD: grow, Data: "two\n"})
	q.must(call{Op: "close", FD: grow})
	q.must(call{Op: "rename", Path: b.path("d"), Path2: b.path("moved")})

	opened := p.open(procFD(fd), rdwr)
	if size := p.must(call{Op: "size", FD: opened}); size != 8 {
		t.Errorf("fstat says %d bytes, want 8", size)
	}
	if end := p.must(call{Op: "seek", FD: opened, Flags: unix.SEEK_END}); end != 8 {
		t.Errorf("the end is at %d, want 8", end)
	}
	if es := v.ls(); len(es) != 1 || es[0].Path != "moved/f" {
		t.Errorf("locked: %v, want moved/f", es)
	}
	p.must(call{Op: "write", FD: opened, Data: "three\n"})
	p.must(call{Op: "close", FD: opened})
	if got := v.read("moved/f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}
