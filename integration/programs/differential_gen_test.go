package programs

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The users that the actors of the differential test are.
var diffUsers = []user{
	{0, 0, nil},
	{1000, 1000, []int{1000, 2000}},
	{1001, 1001, []int{1001}},
	{1000, 1000, []int{1000}},
}

// generator makes the steps of one sequence. Each sequence has its own few
// names and leaves some operations out, so that what it does have happens to
// the same file often.
type generator struct {
	*rand.Rand
	paths   []string
	ops     []string // as often as they are likely
	nonblok int      // O_NONBLOCK where the sequence has fifos: no open of one waits
	letter  int
	who     int
	holes   bool           // looks for holes, and does not allocate: ext4 tells allocated blocks as data or hole by what is in its page cache
	opened  [8][slots]bool // the slots of each actor that may have a descriptor
}

// diffOps are the operations and how likely each is.
var diffOps = map[string]int{
	"open": 24, "reopen": 2, "tmpfile": 1, "take": 1, "dup": 1, "close": 2,
	"read": 5, "pread": 5, "write": 8, "pwrite": 6, "append": 1, "seek": 4,
	"ftruncate": 4, "truncate": 4, "fallocate": 4, "copy": 4,
	"rename": 7, "link": 5, "linkfd": 1, "symlink": 3, "readlink": 1, "mkdir": 4, "mknod": 1, "unlink": 6, "rmdir": 2,
	"chmod": 4, "fchmod": 3, "chown": 3, "fchown": 2, "utimens": 3, "futimens": 2,
	"setxattr": 3, "fsetxattr": 1, "getxattr": 2, "listxattr": 1, "flistxattr": 1, "removexattr": 1, "acl": 2,
	"umask": 2, "chdir": 2, "fchdir": 1, "fsync": 1, "fdatasync": 1, "access": 2, "flock": 1, "setlk": 1, "setfl": 2, "getfl": 1,
	"mmap": 4, "munmap": 1, "store": 5, "load": 4, "msync": 1,
	"stat": 6, "fstat": 5, "list": 3, "flist": 1,
}

// diffOpOrder is diffOps in an order that does not change.
var diffOpOrder = sortedKeys(diffOps)

func newGenerator(seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	g.holes = g.IntN(2) == 0
	for _, op := range diffOpOrder {
		if op != "open" && g.IntN(4) == 0 {
			continue
		}
		for range diffOps[op] {
			g.ops = append(g.ops, op)
		}
		if op == "mknod" {
			g.nonblok = unix.O_NONBLOCK
		}
	}
	all := []string{"a", "b", "c", "d", "e", "d/a", "d/b", "d/e", "d/e/a", "e/a", "e/d", "a/b", "/d/a", "d/../a", "d/./b", "a/", "d/", ".", "\xff\xfe", "d/\n", strings.Repeat("n", 255), strings.Repeat("n", 256)}
	g.paths = []string{"a", "b", "d", "d/a"}
	for range 2 + g.IntN(5) {
		g.paths = append(g.paths, all[g.IntN(len(all))])
	}
	return g
}

// sequence makes the steps of a seed.
func sequence(seed uint64, n int) []step {
	g := newGenerator(seed)
	steps := []step{
		{Op: "mkdir", Path: "d", Mode: 0o777},
		{Op: "chmod", Path: "d", Mode: pick(g, uint32(0o777), 0o777, 0o1777, 0o2777, 0o755)},
		{Op: "open", FD: 1, Path: "a", Flags: unix.O_CREAT | unix.O_RDWR, Mode: 0o666},
		{Op: "write", FD: 1, Data: "A", N: 5000},
		{Op: "fchmod", FD: 1, Mode: pick(g, uint32(0o666), 0o6777, 0o2666, 0o644)},
		{Op: "fchown", FD: 1, Off: int64(pick(g, 0, 1000, 1001)), Off2: int64(pick(g, 0, 1000, 2000))},
	}
	for g.who = range diffUsers { // so that they have something to work on
		for fd := range slots - 2 {
			g.opened[g.who][fd+1] = true
			steps = append(steps, step{Who: g.who, Op: "open", FD: fd + 1, Path: g.paths[g.IntN(2)], Flags: g.openFlags()&^(unix.O_EXCL|unix.O_DIRECTORY|unix.O_PATH) | unix.O_CREAT, Mode: 0o666})
		}
	}
	for len(steps) < n {
		steps = append(steps, g.step())
	}
	return steps
}

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

func (g *generator) path() string { return g.paths[g.IntN(len(g.paths))] }

// slot is one that is to get a descriptor.
func (g *generator) slot() int {
	i := 1 + g.IntN(slots-1)
	g.opened[g.who][i] = true
	return i
}

// used is mostly a slot that has one.
func (g *generator) used() int {
	i := 1 + g.IntN(slots-1)
	for range 20 {
		if g.opened[g.who][i] {
			break
		}
		i = 1 + g.IntN(slots-1)
	}
	return i
}

// dir is mostly the working directory.
func (g *generator) dir() int {
	if g.IntN(12) == 0 {
		return g.used()
	}
	return 0
}

func (g *generator) offset() int64 {
	switch g.IntN(10) {
	case 0:
		return 0
	case 1:
		return int64(g.IntN(64)) << 12
	case 2:
		return 1<<32 + int64(g.IntN(5000))
	case 3, 4:
		return int64(g.IntN(200 << 10))
	}
	return int64(g.IntN(10000))
}

func (g *generator) size() int {
	switch g.IntN(8) {
	case 0:
		return g.IntN(3)
	case 1:
		return g.IntN(32) << 12
	case 2:
		return g.IntN(150 << 10)
	}
	return 1 + g.IntN(9000)
}

func (g *generator) data() string {
	g.letter++
	return string(rune('a' + g.letter%26))
}

func (g *generator) mode() uint32 {
	return pick(g, uint32(0o666), 0o666, 0o666, 0o777, 0o777, 0o777, 0o644, 0o600, 0o640, 0o755, 0o4755, 0o2755, 0o6777, 0o2666, 0o1777, 0o444, 0o000, 0o222)
}

func (g *generator) openFlags() int {
	f := pick(g, unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR)
	if g.IntN(2) == 0 {
		f |= unix.O_CREAT
	}
	for _, o := range []struct{ flag, in int }{
		{unix.O_EXCL, 10}, {unix.O_TRUNC, 5}, {unix.O_APPEND, 5}, {unix.O_NOFOLLOW, 10},
		{unix.O_DIRECTORY, 20}, {unix.O_PATH, 20}, {unix.O_SYNC, 20}, {unix.O_NOATIME, 30}, {unix.O_NONBLOCK, 30},
	} {
		if g.IntN(o.in) == 0 {
			f |= o.flag
		}
	}
	return f | g.nonblok
}

func (g *generator) time() int64 { return pick(g, int64(0), -1, int64(1+g.IntN(1e6))) }

var diffAttrs = []string{"user.a", "user.b", "user.a", "user." + strings.Repeat("x", 250), "user.", "trusted.t", "security.s", "other.o"}

// diffACL is a random ACL, valid or not.
func (g *generator) diffACL() string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	entry := func(tag, perm uint16, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, perm)
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	perm := func() uint16 { return uint16(pick(g, 0, 4, 6, 7, 7)) }
	none := ^uint32(0)
	entry(0x01, perm(), none)
	named := false
	if g.IntN(2) == 0 {
		entry(0x02, perm(), uint32(pick(g, 0, 1000, 1001)))
		named = true
	}
	entry(0x04, perm(), none)
	if g.IntN(2) == 0 {
		entry(0x08, perm(), uint32(pick(g, 0, 1000, 2000)))
		named = true
	}
	if named && g.IntN(20) != 0 {
		entry(0x10, perm(), none)
	}
	entry(0x20, perm(), none)
	return hex.EncodeToString(b)
}

func (g *generator) step() step {
	g.who = pick(g, 0, 0, 1, 1, 2, 3)
	s := step{Who: g.who, Op: g.ops[g.IntN(len(g.ops))]}
	switch s.Op {
	case "open":
		s.FD, s.Dir, s.Path, s.Flags, s.Mode = g.slot(), g.dir(), g.path(), g.openFlags(), g.mode()
		if g.IntN(8) == 0 {
			s.Path, s.Flags = pick(g, "d", ".", "d", s.Path), unix.O_RDONLY|unix.O_DIRECTORY
		}
	case "tmpfile":
		s.Op = "open"
		s.FD, s.Dir, s.Path, s.Mode = g.slot(), g.dir(), pick(g, ".", "d", g.path()), g.mode()
		s.Flags = pick(g, unix.O_RDWR, unix.O_RDWR, unix.O_WRONLY, unix.O_RDONLY) | unix.O_TMPFILE | pick(g, 0, 0, unix.O_EXCL, unix.O_APPEND)
	case "reopen":
		s.FD2, s.FD, s.Flags = g.used(), g.slot(), g.openFlags()&^(unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW)
	case "take":
		s.Who, s.N = 0, g.who
		s.FD2 = g.used()
		g.who = 0
		s.FD = g.slot()
	case "dup":
		s.FD2, s.FD = g.used(), g.slot()
	case "close", "fsync", "fdatasync", "fchdir", "getfl", "munmap", "fstat", "flist", "flistxattr":
		s.FD = g.used()
	case "read":
		s.FD, s.N = g.used(), g.size()
	case "pread":
		s.FD, s.N, s.Off = g.used(), g.size(), g.offset()
	case "write":
		s.FD, s.N, s.Data = g.used(), g.size(), g.data()
	case "pwrite", "append":
		s.FD, s.N, s.Data, s.Off = g.used(), g.size(), g.data(), g.offset()
	case "seek":
		s.FD, s.Off, s.Flags = g.used(), g.offset()-pick(g, int64(0), 0, 5000), g.IntN(3)
		if g.holes {
			s.Flags = g.IntN(5)
		}
	case "ftruncate":
		s.FD, s.Off = g.used(), g.offset()
	case "truncate":
		s.Path, s.Off = g.path(), g.offset()
	case "fallocate":
		const keep, punch, zero = unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE, unix.FALLOC_FL_ZERO_RANGE
		s.FD, s.Off, s.N = g.used(), g.offset(), g.size()
		s.Flags = pick(g, 0, keep, punch|keep, punch|keep, punch, zero, zero|keep)
		if g.holes {
			s.Flags = punch | keep
		}
	case "copy":
		s.FD, s.FD2, s.N = g.used(), g.used(), g.size()
		s.Off, s.Off2 = pick(g, -1, g.offset()), pick(g, -1, g.offset())
	case "rename":
		s.Dir, s.Path, s.Path2 = g.dir(), g.path(), g.path()
		s.Flags = pick(g, 0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE, unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE)
	case "link":
		s.Dir, s.Path, s.Path2, s.Flags = g.dir(), g.path(), g.path(), pick(g, 0, unix.AT_SYMLINK_FOLLOW)
	case "linkfd":
		s.FD, s.Dir, s.Path = g.used(), g.dir(), g.path()
	case "symlink":
		s.Dir, s.Path, s.Data = g.dir(), g.path(), pick(g, "a", "b", "d", "d/a", "../a", "/d", ".", "nowhere", strings.Repeat("t", 200))
	case "readlink", "list":
		s.Dir, s.Path = g.dir(), g.path()
	case "mkdir":
		s.Dir, s.Path, s.Mode = g.dir(), g.path(), pick(g, uint32(0o777), 0o777, 0o1777, 0o2777, 0o755, 0o700)
	case "mknod":
		s.Dir, s.Path, s.Mode = g.dir(), g.path(), g.mode()&0o7777|pick(g, uint32(unix.S_IFIFO), unix.S_IFREG, unix.S_IFSOCK, 0)
	case "unlink":
		s.Dir, s.Path = g.dir(), g.path()
	case "rmdir":
		s.Op, s.Flags = "unlink", unix.AT_REMOVEDIR
		s.Dir, s.Path = g.dir(), g.path()
	case "chmod":
		s.Dir, s.Path, s.Mode = g.dir(), g.path(), g.mode()
	case "fchmod":
		s.FD, s.Mode = g.used(), g.mode()
	case "chown", "fchown":
		s.Off, s.Off2 = int64(pick(g, -1, 0, 1000, 1001)), int64(pick(g, -1, 0, 1000, 2000))
		if s.Op == "fchown" {
			s.FD = g.used()
			break
		}
		s.Dir, s.Path, s.Flags = g.dir(), g.path(), pick(g, 0, unix.AT_SYMLINK_NOFOLLOW)
	case "utimens":
		s.Dir, s.Path, s.Flags = g.dir(), g.path(), pick(g, 0, unix.AT_SYMLINK_NOFOLLOW)
		s.Off, s.Off2 = g.time(), g.time()
	case "futimens":
		s.FD, s.Off, s.Off2 = g.used(), g.time(), g.time()
	case "setxattr", "fsetxattr":
		s.Path2, s.Flags = pick(g, diffAttrs...), pick(g, 0, 0, unix.XATTR_CREATE, unix.XATTR_REPLACE)
		s.Data = strings.Repeat(fmt.Sprintf("%02x", g.IntN(256)), pick(g, 0, 1, 20, 500))
		if s.Op == "fsetxattr" {
			s.FD = g.used()
		} else {
			s.Path = g.path()
		}
	case "acl":
		s.Op, s.Path, s.Path2, s.Data = "setxattr", g.path(), pick(g, lab.ACLAccess, lab.ACLDefault), g.diffACL()
	case "getxattr":
		s.Path, s.Path2, s.N = g.path(), pick(g, append(diffAttrs, lab.ACLAccess, lab.ACLDefault)...), pick(g, 0, 5, 1000, 1000)
	case "listxattr":
		s.Path = g.path()
	case "removexattr":
		s.Path, s.Path2 = g.path(), pick(g, append(diffAttrs, lab.ACLAccess, lab.ACLDefault)...)
	case "umask":
		s.Mode = pick(g, uint32(0), 0, 0o022, 0o022, 0o002, 0o027, 0o077)
	case "chdir":
		s.Path = pick(g, "/", "d", "..", g.path())
	case "access":
		s.Dir, s.Path, s.Mode, s.Flags = g.dir(), g.path(), uint32(g.IntN(8)), pick(g, 0, unix.AT_EACCESS)
	case "flock":
		s.FD, s.Flags = g.used(), pick(g, unix.LOCK_SH, unix.LOCK_EX, unix.LOCK_UN)
	case "setlk":
		s.FD, s.Flags, s.Off, s.N = g.used(), pick(g, unix.F_RDLCK, unix.F_WRLCK, unix.F_UNLCK), int64(g.IntN(10)), g.IntN(10)
	case "setfl":
		s.FD, s.Flags = g.used(), pick(g, 0, unix.O_APPEND, unix.O_APPEND, unix.O_NOATIME)|g.nonblok
	case "mmap":
		s.FD, s.Off, s.N = g.used(), int64(g.IntN(3))<<12, 1+g.IntN(40000)
		s.Mode, s.Flags = pick(g, uint32(unix.PROT_READ), unix.PROT_READ|unix.PROT_WRITE, unix.PROT_READ|unix.PROT_WRITE), pick(g, unix.MAP_SHARED, unix.MAP_SHARED, unix.MAP_PRIVATE)
	case "store":
		s.FD, s.Off, s.N, s.Data = g.used(), int64(g.IntN(20000)), 1+g.IntN(9000), g.data()
	case "load":
		s.FD, s.Off, s.N = g.used(), int64(g.IntN(20000)), 1+g.IntN(9000)
	case "msync":
		s.FD, s.Flags = g.used(), pick(g, unix.MS_SYNC, unix.MS_ASYNC, unix.MS_INVALIDATE|unix.MS_SYNC)
	case "stat":
		s.Dir, s.Path, s.Flags = g.dir(), g.path(), pick(g, 0, unix.AT_SYMLINK_NOFOLLOW, unix.AT_STATX_FORCE_SYNC)
	}
	return s
}
