package integration

import (
	"fmt"
	"strings"
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

// Writers on both mounts append so while programs list the directory there, and
// no record is lost.
func TestSeekEndUnderListing(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	mounts := []*mount{v.mount("a"), v.mount("b")}
	v.write("f", "")
	var writers []*agent
	for _, m := range mounts {
		writers = append(writers, newAgent(t))
		newAgent(t).start(call{Op: "repeat", N: -1, Calls: []call{{Op: "list", Path: m.dir}}})
	}
	const records = 40
	var want strings.Builder
	for i := range records {
		// Some rounds alternate, some stay: what a mount believes is then its own.
		w := i / 3 % 2
		record := fmt.Sprintf("%d %04d\n", w, i)
		want.WriteString(record)
		fd := writers[w].open(mounts[w].path("f"), rdwr)
		writers[w].must(call{Op: "write at end", FD: fd, Data: record})
		writers[w].must(call{Op: "close", FD: fd})
	}
	if got := v.read("f"); got != want.String() {
		t.Errorf("%d of %d records, %d bytes of %d", strings.Count(got, "\n"), records, len(got), want.Len())
	}
}

// A file has grown and its directory has another name when a program that
// knows both as they were opens it. Each is worth an ESTALE to the kernel, which
// bears one in a system call: the second once reached the program. It gets the
// file, and sees all of it.
func TestOneESTALE(t *testing.T) {
	v := newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	for _, how := range []string{"path", "descriptor"} {
		t.Run("by "+how, func(t *testing.T) {
			p, q := newAgent(t), newAgent(t)
			q.must(call{Op: "mkdir", Path: b.path(how)})
			v.write(how+"/f", "one\n")
			p.must(call{Op: "chdir", Path: a.path(how)})
			fd := p.open("f", rdonly)
			path := "f"
			if how == "descriptor" {
				path = procFD(fd)
			}
			grow := q.open(b.path(how+"/f"), wronly|appends)
			q.must(call{Op: "write", FD: grow, Data: "two\n"})
			q.must(call{Op: "close", FD: grow})
			q.must(call{Op: "rename", Path: b.path(how), Path2: b.path("moved-" + how)})

			opened := p.open(path, rdwr)
			if size := p.must(call{Op: "size", FD: opened}); size != 8 {
				t.Errorf("fstat says %d bytes, want 8", size)
			}
			if end := p.must(call{Op: "seek", FD: opened, Flags: unix.SEEK_END}); end != 8 {
				t.Errorf("the end is at %d, want 8", end)
			}
			if es := v.ls(); len(es) != 1 || es[0].Path != "moved-"+how+"/f" {
				t.Errorf("locked: %v, want moved-%s/f", es, how)
			}
			p.must(call{Op: "write", FD: opened, Data: "three\n"})
			p.must(call{Op: "close", FD: opened})
			if got := v.read("moved-" + how + "/f"); got != "one\ntwo\nthree\n" {
				t.Errorf("the file holds %q", got)
			}
		})
	}
}
