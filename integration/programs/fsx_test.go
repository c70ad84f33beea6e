package programs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// A file is used in every way that changes it, by one program at a time, on
// alternating mounts: it always holds what a slice of bytes holds that is treated the same.
func TestFileExerciser(t *testing.T) {
	t.Parallel()
	lasts := max(longtest.For(t), 3*time.Second)
	v := lab.NewVolume(t, "--wait", "-1", "--scope", "handle")
	a, b := v.Mount("a"), v.Mount("b")
	for name, mounts := range map[string][]*lab.Mount{"one mount": {a}, "two mounts": {a, b}} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			x := &exerciser{t: t, rand: rand.New(rand.NewPCG(seed, 0)), name: strings.ReplaceAll(name, " ", "-")}
			t.Cleanup(func() { x.tell(seed) })
			for end := time.Now().Add(lasts / 2); time.Now().Before(end); {
				x.use(mounts[x.rand.IntN(len(mounts))], 1+x.rand.IntN(60))
			}
			if got := v.Read(x.name); got != string(x.want) {
				x.differs("the volume", []byte(got), x.want, 0)
			}
		})
	}
}

// exerciser uses one file, and knows what it has to hold.
type exerciser struct {
	t    *testing.T
	rand *rand.Rand
	name string
	want []byte

	fd    int
	flags int // it was opened with

	calls int
	log   []string
}

func (x *exerciser) tell(seed uint64) {
	x.t.Logf("%s: seed %d, %d calls", x.name, seed, x.calls)
	if x.t.Failed() {
		x.t.Logf("the last of them:\n%s", strings.Join(x.log[max(0, len(x.log)-60):], "\n"))
	}
}

const (
	maxFile  = 256 << 10
	maxPiece = 48 << 10
	block    = 4096
)

// modes are what a file can be opened with.
var modes = []int{unix.O_RDWR, unix.O_RDWR, unix.O_RDWR | unix.O_APPEND, unix.O_RDWR | unix.O_DIRECT, unix.O_WRONLY, unix.O_WRONLY | unix.O_APPEND, unix.O_RDONLY, unix.O_RDWR | unix.O_SYNC}

// use opens the file, makes n random calls, and closes it.
func (x *exerciser) use(m *lab.Mount, n int) {
	x.t.Helper()
	x.flags = modes[x.rand.IntN(len(modes))]
	if x.want == nil || x.flags != unix.O_RDONLY && x.rand.IntN(20) == 0 {
		x.flags |= unix.O_CREAT | unix.O_TRUNC
		x.want = []byte{}
	}
	x.note("open on %s with %#x", m.Name, x.flags)
	err := error(unix.EINTR)
	for err == unix.EINTR { // Go interrupts its threads, and any signal ends the wait for a lock
		x.fd, err = unix.Open(m.Path(x.name), x.flags|unix.O_CLOEXEC, 0o644)
	}
	if err != nil {
		x.t.Fatal("open: ", err)
	}
	defer unix.Close(x.fd)
	x.size()
	for range n {
		x.step()
	}
	if x.flags&unix.O_ACCMODE != unix.O_WRONLY {
		x.read(0, len(x.want))
	}
	x.note("close")
}

func (x *exerciser) writable() bool { return x.flags&unix.O_ACCMODE != unix.O_RDONLY }

func (x *exerciser) readable() bool { return x.flags&unix.O_ACCMODE != unix.O_WRONLY }

// step makes a call that the open file allows.
func (x *exerciser) step() {
	x.t.Helper()
	x.calls++
	type op struct {
		may bool
		do  func()
	}
	ops := []op{
		{x.readable(), func() { x.read(x.piece()) }},
		{x.readable(), func() { x.mapped(false) }},
		{x.writable(), x.write},
		{x.writable(), x.write},
		{x.writable(), x.truncate},
		{x.writable(), x.fallocate},
		{x.writable() && x.readable() && x.flags&unix.O_APPEND == 0, x.copyRange},
		{x.writable() && x.readable(), func() { x.mapped(true) }},
		{true, x.size},
		{true, func() { x.must("fsync", unix.Fsync(x.fd)) }},
	}
	for {
		if o := ops[x.rand.IntN(len(ops))]; o.may {
			o.do()
			return
		}
	}
}

// piece is a random part of a file: of whole blocks if the file is open with
// O_DIRECT, and often elsewhere.
func (x *exerciser) piece() (off, n int) {
	off, n = x.rand.IntN(maxFile-maxPiece), 1+x.rand.IntN(maxPiece)
	if x.rand.IntN(2) == 0 && len(x.want) > 0 {
		off = x.rand.IntN(len(x.want)) // not in a hole behind the end
	}
	if x.flags&unix.O_DIRECT != 0 || x.rand.IntN(3) == 0 {
		off, n = off/block*block, (n+block-1)/block*block
	}
	return off, n
}

// grow makes the file at least n bytes long.
func (x *exerciser) grow(n int) {
	if n > len(x.want) {
		x.want = append(x.want, make([]byte, n-len(x.want))...)
	}
}

func (x *exerciser) read(off, n int) {
	x.t.Helper()
	x.note("read %d at %d", n, off)
	buf := lab.Aligned(n)
	got, err := unix.Pread(x.fd, buf, int64(off))
	x.must("read", err)
	want := x.want[min(off, len(x.want)):min(off+n, len(x.want))]
	if !bytes.Equal(buf[:got], want) {
		x.differs("read", buf[:got], want, off)
	}
}

func (x *exerciser) write() {
	x.t.Helper()
	off, n := x.piece()
	data := x.data(n)
	x.note("write %d at %d", n, off)
	got, err := unix.Pwrite(x.fd, data, int64(off))
	x.must("write", err)
	if got != n {
		x.t.Fatalf("of %d bytes %d were written", n, got)
	}
	if x.flags&unix.O_APPEND != 0 {
		off = len(x.want) // Linux appends whatever the offset
	}
	x.grow(off + n)
	copy(x.want[off:], data)
}

func (x *exerciser) truncate() {
	x.t.Helper()
	n := x.rand.IntN(maxFile)
	x.note("truncate to %d", n)
	x.must("truncate", unix.Ftruncate(x.fd, int64(n)))
	x.grow(n)
	x.want = x.want[:n:n]
}

func (x *exerciser) fallocate() {
	x.t.Helper()
	off, n := x.piece()
	mode := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE,
		unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE}[x.rand.IntN(7)]
	if mode&(unix.FALLOC_FL_COLLAPSE_RANGE|unix.FALLOC_FL_INSERT_RANGE) != 0 {
		off, n = off/block*block, (n+block-1)/block*block
	}
	x.note("fallocate %#x of %d at %d", mode, n, off)
	err := unix.Fallocate(x.fd, mode, int64(off), int64(n))
	switch {
	case err == unix.EOPNOTSUPP:
		return // by the file system below
	case mode&(unix.FALLOC_FL_COLLAPSE_RANGE|unix.FALLOC_FL_INSERT_RANGE) != 0:
		if err == unix.EINVAL { // at or behind the end
			return
		}
		x.must("fallocate", err)
		if mode == unix.FALLOC_FL_COLLAPSE_RANGE {
			x.want = append(x.want[:off:off], x.want[off+n:]...)
		} else {
			x.want = append(x.want[:off:off], append(make([]byte, n), x.want[off:]...)...)
		}
	default:
		x.must("fallocate", err)
		if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
			x.grow(off + n)
		}
		if mode&(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_ZERO_RANGE) != 0 {
			clear(x.want[min(off, len(x.want)):min(off+n, len(x.want))])
		}
	}
	if len(x.want) > maxFile {
		x.want = x.want[:maxFile:maxFile]
		x.must("truncate", unix.Ftruncate(x.fd, maxFile))
	}
}

func (x *exerciser) copyRange() {
	x.t.Helper()
	from, n := x.piece()
	to, _ := x.piece()
	if n = min(n, len(x.want)-from); n <= 0 || from < to+n && to < from+n {
		return // nothing to copy, or over itself
	}
	x.note("copy %d from %d to %d", n, from, to)
	rfrom, rto := int64(from), int64(to)
	got, err := unix.CopyFileRange(x.fd, &rfrom, x.fd, &rto, n, 0)
	x.must("copy_file_range", err)
	x.grow(to + got)
	copy(x.want[to:to+got], x.want[from:from+got])
}

// mapped reads a mapping, and writes to it, as far as the file goes.
func (x *exerciser) mapped(write bool) {
	x.t.Helper()
	off, n := x.piece()
	off = off / block * block
	if n = min(n, len(x.want)-off); n <= 0 {
		return
	}
	x.note("map %d at %d, to write: %t", n, off, write)
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	m, err := unix.Mmap(x.fd, int64(off), n, prot, unix.MAP_SHARED)
	x.must("mmap", err)
	defer unix.Munmap(m)
	if !bytes.Equal(m, x.want[off:off+n]) {
		x.differs("mmap", m, x.want[off:off+n], off)
	}
	if !write {
		return
	}
	data := x.data(n)
	copy(m, data)
	copy(x.want[off:], data)
	if x.rand.IntN(2) == 0 || x.flags&(unix.O_APPEND|unix.O_DIRECT) != 0 {
		x.must("msync", unix.Msync(m, unix.MS_SYNC))
	}
}

func (x *exerciser) size() {
	x.t.Helper()
	var st unix.Stat_t
	x.must("fstat", unix.Fstat(x.fd, &st))
	if int(st.Size) != len(x.want) {
		x.t.Fatalf("fstat says %d bytes, want %d", st.Size, len(x.want))
	}
	end, err := unix.Seek(x.fd, 0, unix.SEEK_END)
	x.must("lseek", err)
	if int(end) != len(x.want) {
		x.t.Fatalf("the end is at %d, want %d", end, len(x.want))
	}
}

// data is n bytes that tell where they come from.
func (x *exerciser) data(n int) []byte {
	buf := lab.Aligned(n)
	pattern := fmt.Sprintf("%d.", x.calls)
	for i := range buf {
		buf[i] = pattern[i%len(pattern)]
	}
	return buf
}

func (x *exerciser) note(format string, args ...any) {
	x.log = append(x.log, fmt.Sprintf("%d: ", x.calls)+fmt.Sprintf(format, args...))
}

func (x *exerciser) must(what string, err error) {
	x.t.Helper()
	if err != nil {
		x.t.Fatalf("%s: %v", what, err)
	}
}

func (x *exerciser) differs(what string, got, want []byte, off int) {
	x.t.Helper()
	at := 0
	for at < len(got) && at < len(want) && got[at] == want[at] {
		at++
	}
	x.t.Fatalf("%s gives %d bytes, want %d; the first difference is at %d: %.20q, want %.20q", what, len(got), len(want), off+at, got[at:], want[at:])
}
