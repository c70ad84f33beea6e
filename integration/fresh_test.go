package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sees opens name as a reader and compares all it can see with want.
func (a *agent) sees(path, want string) {
	a.t.Helper()
	fd := a.open(path, rdonly)
	if got := a.do(call{Op: "pread", FD: fd, N: 4096}); got.Data != want {
		a.t.Errorf("read gives %.60q (%d bytes, %v), want %.60q (%d)", got.Data, got.N, got.Err(), want, len(want))
	}
	a.must(call{Op: "close", FD: fd})
	fd = a.open(path, rdonly)
	if size := a.must(call{Op: "size", FD: fd}); size != len(want) {
		a.t.Errorf("fstat says %d bytes, want %d", size, len(want))
	}
	a.must(call{Op: "close", FD: fd})
	fd = a.open(path, rdonly)
	if end := a.must(call{Op: "seek", FD: fd, Flags: unix.SEEK_END}); end != len(want) {
		a.t.Errorf("the end is at %d, want %d", end, len(want))
	}
	a.must(call{Op: "close", FD: fd})
}

// A reader that opens after a writer on another mount has closed sees what was
// written, however soon: longer, shorter, and of the same size within one tick
// of the clock; whether or not others on its mount ask for the attributes just
// then, so that replies overtake one another.
func TestReaderSeesTheLastWriter(t *testing.T) {
	over(t, testReaderSeesTheLastWriter, local, overClients.forLong(), overClientsThatKeep.forLong(), onNetworkVolume)
}

func testReaderSeesTheLastWriter(t *testing.T, on setup) {
	v := on.newVolume(t)
	v.inMemory()
	a, b := v.mount("a"), v.mount("b")
	v.write("f", "")
	writer, reader := newAgent(t), newAgent(t)
	stop := make(chan struct{})
	defer close(stop)
	for range 3 {
		go func() {
			var st unix.Stat_t
			for {
				select {
				case <-stop:
					return
				default:
					_ = unix.Stat(b.path("f"), &st)
				}
			}
		}()
	}
	for i := range 40 {
		want := fmt.Sprintf("%04d", i)
		switch i % 4 {
		case 1: // shorter
			want = "-"
		case 2: // longer
			want += strings.Repeat("x", 100*i)
		}
		fd := writer.open(a.path("f"), wronly|trunc)
		writer.must(call{Op: "write", FD: fd, Data: want})
		writer.must(call{Op: "close", FD: fd})
		reader.sees(b.path("f"), want)
		again := strings.ToUpper(strings.Repeat("y", len(want)))
		fd = writer.open(a.path("f"), wronly)
		writer.must(call{Op: "write", FD: fd, Data: again})
		writer.must(call{Op: "close", FD: fd})
		reader.sees(b.path("f"), again)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
}

// Pages of a file that has not changed stay cached over an open: they are not
// read again. One change, of whatever kind, and they are.
func TestCacheOutlivesOpen(t *testing.T) {
	v := newVolume(t)
	a := v.mount("a")
	const size = 4 << 20
	v.write("f", strings.Repeat("1", size))
	old := time.Now().Add(-time.Hour)
	reader := newAgent(t)
	cached := func() bool {
		t.Helper()
		fd := reader.open(a.path("f"), rdonly)
		defer reader.must(call{Op: "close", FD: fd})
		return reader.must(call{Op: "incore", FD: fd, N: size}) > 0
	}
	fill := func() {
		t.Helper()
		fd := reader.open(a.path("f"), rdonly)
		for off := 0; off < size; off += 1 << 16 {
			reader.must(call{Op: "pread", FD: fd, N: 1 << 16, Off: int64(off)})
		}
		reader.must(call{Op: "close", FD: fd})
	}
	// A file that has just been written may change again within its timestamp.
	eventually(t, "the cache is kept", func() bool { fill(); return cached() })
	fill()
	if !cached() {
		t.Error("the cache is dropped by an open of an unchanged file")
	}
	for what, change := range map[string]func() error{
		"its bytes": func() error { v.write("f", strings.Repeat("2", size)); return nil },
		"its times": func() error {
			return unix.Utimes(v.inSource("f"), []unix.Timeval{unix.NsecToTimeval(old.UnixNano()), unix.NsecToTimeval(old.UnixNano())})
		},
	} {
		eventually(t, "the cache is kept", func() bool { fill(); return cached() })
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if cached() {
			t.Errorf("the cache is kept although another changed %s", what)
		}
	}
}
