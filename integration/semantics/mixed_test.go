package semantics

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// opener is one way to have a file open.
type opener struct {
	name  string
	flags int
	prot  int // of a shared mapping; 0 for read and write
}

var openers = []opener{
	{name: "read", flags: unix.O_RDONLY},
	{name: "write", flags: unix.O_WRONLY},
	{name: "rdwr", flags: unix.O_RDWR},
	{name: "append", flags: unix.O_WRONLY | unix.O_APPEND},
	{name: "rdwr-append", flags: unix.O_RDWR | unix.O_APPEND},
	{name: "direct", flags: unix.O_RDWR | unix.O_DIRECT},
	{name: "map-read", flags: unix.O_RDONLY, prot: unix.PROT_READ},
	{name: "map-write", flags: unix.O_RDWR, prot: unix.PROT_READ | unix.PROT_WRITE},
}

const (
	mixedPage = 4096
	mixedSize = 2*mixedPage + record // so that the third page can be mapped
	record    = 16
)

// mixed is one file that is open in several ways at once, and what it holds.
type mixed struct {
	t    *testing.T
	path string
	want []byte
	open []openFile
}

type openFile struct {
	opener
	fd int
	m  []byte
}

// add opens the file in one more way, and writes by it if that can be.
func (x *mixed) add(o opener) {
	x.t.Helper()
	fd, err := unix.Open(x.path, o.flags|unix.O_CLOEXEC, 0)
	if err != nil {
		x.t.Fatalf("open: %v", err)
	}
	f := openFile{opener: o, fd: fd}
	if o.prot != 0 {
		if f.m, err = unix.Mmap(fd, 0, 3*mixedPage, o.prot, unix.MAP_SHARED); err != nil {
			x.t.Fatalf("mmap: %v", err)
		}
	}
	x.open = append(x.open, f)
	x.write(f)
}

// write puts a record where no other is, but for the direct one, which writes
// a page.
func (x *mixed) write(f openFile) {
	x.t.Helper()
	text := fmt.Appendf(nil, "%-*s\n", record-1, f.name)
	off := record * slices.IndexFunc(openers, func(o opener) bool { return o.name == f.name })
	var err error
	switch {
	case f.prot&unix.PROT_WRITE != 0:
		copy(f.m[off:], text)
	case f.prot != 0 || f.flags&unix.O_ACCMODE == unix.O_RDONLY:
		return
	case f.flags&unix.O_APPEND != 0:
		off = len(x.want)
		x.want = append(x.want, text...)
		_, err = unix.Write(f.fd, text)
	case f.flags&unix.O_DIRECT != 0:
		off = mixedPage
		page := lab.Aligned(mixedPage)
		copy(page, bytes.Repeat(text, mixedPage/record))
		text = page
		_, err = unix.Pwrite(f.fd, page, mixedPage)
	default:
		_, err = unix.Pwrite(f.fd, text, int64(off))
	}
	if err != nil {
		x.t.Fatalf("write by %s: %v", f.name, err)
	}
	copy(x.want[off:], text)
}

// look reads the file in each way in which it is open.
func (x *mixed) look() {
	x.t.Helper()
	for _, f := range x.open {
		var st unix.Stat_t
		if err := unix.Fstat(f.fd, &st); err != nil || st.Size != int64(len(x.want)) {
			x.t.Fatalf("fstat by %s: %d bytes, %v, want %d", f.name, st.Size, err, len(x.want))
		}
		if f.flags&unix.O_ACCMODE == unix.O_WRONLY {
			continue
		}
		got := f.m
		if got == nil {
			got = lab.Aligned(3 * mixedPage)
			n, err := unix.Pread(f.fd, got, 0)
			if err != nil || n != len(x.want) {
				x.t.Fatalf("read by %s: %d bytes, %v, want %d", f.name, n, err, len(x.want))
			}
		}
		if got = got[:len(x.want)]; !bytes.Equal(got, x.want) {
			x.t.Fatalf("%s does not see what was written: %q, want %q", f.name, records(got), records(x.want))
		}
	}
}

func (x *mixed) close() {
	for _, f := range x.open {
		if f.m != nil {
			_ = unix.Munmap(f.m)
		}
		_ = unix.Close(f.fd)
	}
}

// records is b without what was never written.
func records(b []byte) string { return strings.ReplaceAll(string(b), "\x00", "") }

// orders lists all orders of three of the openers, and some of all of them. The
// kernel keeps one state for an inode: nobody does I/O, it is cached, or it
// goes past the cache; a way to open a file that does not bear with the
// state shows itself in three steps.
func orders() [][]opener {
	var all [][]opener
	for _, a := range openers {
		for _, b := range openers {
			for _, c := range openers {
				if a != b && b != c && a != c {
					all = append(all, []opener{a, b, c})
				}
			}
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		order := slices.Clone(openers)
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		all = append(all, order)
	}
	return all
}

// Readers, writers and mappings of one file by one owner go together in any
// order of opening, and each sees at once what the others write: as on the
// directory itself.
func TestMixedOpenings(t *testing.T) { lab.Over(t, testMixedOpenings, lab.Local, lab.OnNetworkVolume) }

func testMixedOpenings(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a := v.Mount("a")
	var u unix.Utsname
	var major, minor int
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscanf(unix.ByteSliceToString(u.Release[:]), "%d.%d", &major, &minor); err != nil {
		t.Fatal(err)
	}
	old := major < 6 || major == 6 && minor < 6
	dirs := map[string]string{"view": a.Dir}
	if !v.HasClients() { // a client of a network volume need not keep to it
		dirs["directory"] = v.Source
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			for i, order := range orders() {
				var names []string
				for _, o := range order {
					names = append(names, o.name)
				}
				file := fmt.Sprintf("%s%d", name, i)
				v.Write(file, string(make([]byte, mixedSize)))
				t.Run(strings.Join(names, ","), func(t *testing.T) {
					if old && slices.Contains(names, "map-write") && slices.Contains(names, "rdwr-append") {
						t.Skip("before Linux 6.6 who goes past the cache does not read what a mapping has not sent")
					}
					x := &mixed{t: t, path: filepath.Join(dir, file), want: make([]byte, mixedSize)}
					defer x.close()
					for _, o := range order {
						x.add(o)
						x.look()
					}
					for _, f := range slices.Backward(x.open) {
						x.write(f)
						x.look()
					}
				})
			}
		})
	}
}
