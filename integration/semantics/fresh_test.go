package semantics

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A reader that opens after a writer on another mount has closed sees what was
// written, however soon: longer, shorter, and of the same size within one tick
// of the clock; whether or not others on its mount ask for the attributes just
// then, so that replies overtake one another.
func TestReaderSeesTheLastWriter(t *testing.T) {
	lab.Over(t, testReaderSeesTheLastWriter, lab.Local, lab.OverClients.ForLong(), lab.OverClientsThatKeep.ForLong(), lab.OnNetworkVolume)
}

func testReaderSeesTheLastWriter(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	v.Write("f", "")
	writer, reader := lab.NewAgent(t), lab.NewAgent(t)
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
					_ = unix.Stat(b.Path("f"), &st)
				}
			}
		}()
	}
	for i := range 20 {
		want := fmt.Sprintf("%04d", i)
		switch i % 4 {
		case 1: // shorter
			want = "-"
		case 2: // longer
			want += strings.Repeat("x", 100*i)
		}
		fd := writer.Open(a.Path("f"), unix.O_WRONLY|unix.O_TRUNC)
		writer.Must(lab.Call{Op: "write", FD: fd, Data: want})
		writer.Must(lab.Call{Op: "close", FD: fd})
		reader.Sees(b.Path("f"), want)
		again := strings.ToUpper(strings.Repeat("y", len(want)))
		fd = writer.Open(a.Path("f"), unix.O_WRONLY)
		writer.Must(lab.Call{Op: "write", FD: fd, Data: again})
		writer.Must(lab.Call{Op: "close", FD: fd})
		reader.Sees(b.Path("f"), again)
		if t.Failed() {
			t.Fatalf("in round %d", i)
		}
	}
}

// Pages of a file that has not changed stay cached over an open: they are not
// read again. One change, of whatever kind, and they are.
func TestCacheOutlivesOpen(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a := v.Mount("a")
	const size = 4 << 20
	v.Write("f", strings.Repeat("1", size))
	old := time.Now().Add(-time.Hour)
	reader := lab.NewAgent(t)
	cached := func() bool {
		t.Helper()
		fd := reader.Open(a.Path("f"), unix.O_RDONLY)
		defer reader.Must(lab.Call{Op: "close", FD: fd})
		return reader.Must(lab.Call{Op: "incore", FD: fd, N: size}) > 0
	}
	fill := func() {
		t.Helper()
		fd := reader.Open(a.Path("f"), unix.O_RDONLY)
		for off := 0; off < size; off += 1 << 16 {
			reader.Must(lab.Call{Op: "pread", FD: fd, N: 1 << 16, Off: int64(off)})
		}
		reader.Must(lab.Call{Op: "close", FD: fd})
	}
	// A file that has just been written may change again within its timestamp.
	lab.Eventually(t, "the cache is kept", func() bool { fill(); return cached() })
	fill()
	if !cached() {
		t.Error("the cache is dropped by an open of an unchanged file")
	}
	for what, change := range map[string]func() error{
		"its bytes": func() error { v.Write("f", strings.Repeat("2", size)); return nil },
		"its times": func() error {
			return unix.Utimes(v.InSource("f"), []unix.Timeval{unix.NsecToTimeval(old.UnixNano()), unix.NsecToTimeval(old.UnixNano())})
		},
	} {
		lab.Eventually(t, "the cache is kept", func() bool { fill(); return cached() })
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if cached() {
			t.Errorf("the cache is kept although another changed %s", what)
		}
	}
}
