package semantics

import (
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A writer goes to the file's end by SEEK_END, and finds the one that the last
// writer left. Of two replies that overlap, of listings say, the kernel keeps
// the first to arrive and drops the other: if that one is newer, the mount
// believes the kernel to know what it does not. Records were once written over
// one another so.
func TestSeekEndAfterOverlappingReplies(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	stats := lab.NewTurnstile(t)
	v.Under(func(n lab.Below) gofs.InodeEmbedder { return &heldStats{n, stats} })
	a, b := v.Mount("a"), v.Mount("b")
	t.Cleanup(stats.End)
	v.Write("f", "one\n")
	appender, early, late, writer := lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t), lab.NewAgent(t)
	fds := make(map[*lab.Agent]int)
	for _, p := range []*lab.Agent{early, late, writer} {
		fds[p] = p.Open(b.Path("f"), unix.O_RDONLY)
	}
	ask := func(p *lab.Agent) (<-chan lab.Result, func()) {
		t.Helper()
		stats.Shut.Store(true)
		defer stats.Shut.Store(false)
		return p.Start(lab.Call{Op: "ask for size", FD: fds[p]}), stats.Next()
	}
	before, letBefore := ask(early)
	end := appender.Open(a.Path("f"), unix.O_WRONLY|unix.O_APPEND)
	appender.Must(lab.Call{Op: "write", FD: end, Data: "two\n"})
	appender.Must(lab.Call{Op: "close", FD: end})
	after, letAfter := ask(late)
	letBefore()
	if r := lab.Await(t, "the early question", before); r.N != 4 {
		t.Fatalf("the early question got %d, %v", r.N, r.Err())
	}
	letAfter()
	if r := lab.Await(t, "the late question", after); r.Errno != 0 {
		t.Fatal(r.Errno)
	}
	fd := writer.Open(lab.ProcFD(fds[writer]), unix.O_RDWR) // looks nothing up
	writer.Must(lab.Call{Op: "write at end", FD: fd, Data: "three\n"})
	writer.Must(lab.Call{Op: "close", FD: fd})
	if got := v.Read("f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}

// A file has grown and its directory has another name when a program opens it
// that knows it by a descriptor. Each is worth an ESTALE to the kernel, which
// bears one in a system call: the second once reached the program. It gets the
// file, and sees all of it.
func TestOneESTALE(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	p, q := lab.NewAgent(t), lab.NewAgent(t)
	q.Must(lab.Call{Op: "mkdir", Path: b.Path("d")})
	v.Write("d/f", "one\n")
	fd := p.Open(a.Path("d/f"), unix.O_RDONLY)
	grow := q.Open(b.Path("d/f"), unix.O_WRONLY|unix.O_APPEND)
	q.Must(lab.Call{Op: "write", FD: grow, Data: "two\n"})
	q.Must(lab.Call{Op: "close", FD: grow})
	q.OnceFree(lab.Call{Op: "rename", Path: b.Path("d"), Path2: b.Path("moved")})

	opened := p.Open(lab.ProcFD(fd), unix.O_RDWR)
	if size := p.Must(lab.Call{Op: "size", FD: opened}); size != 8 {
		t.Errorf("fstat says %d bytes, want 8", size)
	}
	if end := p.Must(lab.Call{Op: "seek", FD: opened, Flags: unix.SEEK_END}); end != 8 {
		t.Errorf("the end is at %d, want 8", end)
	}
	v.AwaitLocked("moved/f")
	p.Must(lab.Call{Op: "write", FD: opened, Data: "three\n"})
	p.Must(lab.Call{Op: "close", FD: opened})
	if got := v.Read("moved/f"); got != "one\ntwo\nthree\n" {
		t.Errorf("the file holds %q", got)
	}
}
