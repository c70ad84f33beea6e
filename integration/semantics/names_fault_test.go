package semantics

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// nameFault is what goes wrong with a volume's changes of names.
type nameFault struct {
	done  *lab.Turnstile              // they are made, and not answered yet
	fails atomic.Pointer[nameFailure] // nil: nothing
	later chan func()                 // what is yet to be made
}

type nameFailure struct {
	errno syscall.Errno
	when  when
}

// when a change of names that failed is made all the same.
type when int

const (
	never when = iota
	before
	after // the answer
)

func withNameFaults(v *lab.Volume) *nameFault {
	v.T.Helper()
	f := &nameFault{done: lab.NewTurnstile(v.T), later: make(chan func(), 16)}
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &faultyNames{b, f} })
	return f
}

// make makes a change, or fails. changed tells the file system of one that was
// made, which is not told by the answer then.
func (f *nameFault) make(change func() syscall.Errno, changed func()) syscall.Errno {
	fail := f.fails.Load()
	if fail == nil {
		errno := change()
		f.done.Pass()
		return errno
	}
	silently := func() {
		if change() == 0 {
			changed()
		}
	}
	switch fail.when {
	case before:
		silently()
	case after:
		f.later <- silently
	}
	return fail.errno
}

// faultyNames is a volume with such faults, as a network volume is whose client
// gives up: nobody knows what the server has done, or will.
type faultyNames struct {
	lab.Below
	fault *nameFault
}

func (n *faultyNames) Rename(ctx context.Context, name string, to gofs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	return n.fault.make(func() syscall.Errno { return n.LoopbackNode.Rename(ctx, name, to, newName, flags) }, func() {
		if flags&unix.RENAME_EXCHANGE != 0 {
			n.ExchangeChild(name, to.EmbeddedInode(), newName)
		} else {
			n.MvChild(name, to.EmbeddedInode(), newName, true)
		}
	})
}

func (n *faultyNames) Unlink(ctx context.Context, name string) syscall.Errno {
	return n.fault.make(func() syscall.Errno { return n.LoopbackNode.Unlink(ctx, name) }, func() { n.RmChild(name) })
}

func (n *faultyNames) Link(ctx context.Context, target gofs.InodeEmbedder, name string, out *fuse.EntryOut) (*gofs.Inode, syscall.Errno) {
	var child *gofs.Inode
	errno := n.fault.make(func() (errno syscall.Errno) {
		child, errno = n.LoopbackNode.Link(ctx, target, name, out)
		return errno
	}, func() {})
	if errno != 0 { // it may be made yet
		return nil, errno
	}
	return child, 0
}

func (n *faultyNames) Create(ctx context.Context, name string, flags, mode uint32, out *fuse.EntryOut) (*gofs.Inode, gofs.FileHandle, uint32, syscall.Errno) {
	var child *gofs.Inode
	var f gofs.FileHandle
	errno := n.fault.make(func() (errno syscall.Errno) {
		child, f, _, errno = n.LoopbackNode.Create(ctx, name, flags, mode, out)
		return errno
	}, func() { f.(gofs.FileReleaser).Release(ctx) })
	if errno != 0 {
		return nil, nil, 0, errno
	}
	return child, f, 0, 0
}

// namesCase is a call that changes the names of files that its caller has open
// for write.
type namesCase struct {
	dir   string
	links bool     // f and g are one file
	open  []string // by the caller: of those that are there
	op    string
	to    bool     // it has g as second name
	held  []string // names that files of the caller's have afterwards
	free  []string // names that nothing of the caller's has afterwards
}

var namesCases = []namesCase{
	{dir: "rename", open: []string{"f"}, op: "rename", to: true, held: []string{"g"}, free: []string{"f"}},
	{dir: "over", open: []string{"f", "g"}, op: "rename", to: true, held: []string{"g"}, free: []string{"f"}},
	{dir: "exchange", open: []string{"f", "g"}, op: "exchange", to: true, held: []string{"f", "g"}},
	{dir: "exchange-one", open: []string{"f"}, op: "exchange", to: true, held: []string{"g"}, free: []string{"f"}},
	{dir: "link", open: []string{"f"}, op: "link", to: true, held: []string{"f", "g"}},
	{dir: "unlink", links: true, open: []string{"f"}, op: "unlink", held: []string{"g"}, free: []string{"f"}},
}

// namesRun is one such case on two mounts: the caller's, and another's.
type namesRun struct {
	namesCase
	t      *testing.T
	v      *lab.Volume
	a, b   *lab.Mount
	caller *lab.Agent
	fds    []int
}

func newNamesRun(v *lab.Volume, t *testing.T, c namesCase, a, b *lab.Mount) *namesRun {
	t.Helper()
	r := &namesRun{namesCase: c, t: t, v: v, a: a, b: b, caller: lab.NewAgent(t)}
	if err := os.Mkdir(v.InSource(c.dir), 0o755); err != nil {
		t.Fatal(err)
	}
	v.Write(c.dir+"/f", "")
	switch {
	case c.links:
		if err := os.Link(v.InSource(c.dir+"/f"), v.InSource(c.dir+"/g")); err != nil {
			t.Fatal(err)
		}
		r.caller.Must(lab.Call{Op: "mode", Path: r.path(a, "g")}) // the mount knows it
	case c.op == "exchange" || len(c.open) > 1:
		v.Write(c.dir+"/g", "")
	}
	for _, name := range c.open {
		r.fds = append(r.fds, r.caller.Open(r.path(a, name), unix.O_WRONLY))
	}
	return r
}

func (r *namesRun) path(m *lab.Mount, name string) string { return m.Path(r.dir + "/" + name) }

func (r *namesRun) call() lab.Call {
	c := lab.Call{Op: r.op, Path: r.path(r.a, "f")}
	if r.to {
		c.Path2 = r.path(r.a, "g")
	}
	return c
}

// checkHeld checks that nobody opens names for write.
func (r *namesRun) checkHeld(names ...string) {
	r.t.Helper()
	other := lab.NewAgent(r.t)
	defer other.Kill()
	for _, m := range []*lab.Mount{r.a, r.b} {
		for _, name := range names {
			lab.Eventually(r.t, "the lock service answers", func() bool {
				switch got := other.Do(lab.Call{Op: "open", Path: r.path(m, name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}); got.Errno {
				case 0:
					r.t.Errorf("%s: %s/%s, which others can write to, was opened for write on %s", r.op, r.dir, name, m.Name)
				case unix.ENOLCK, unix.ESTALE:
					return false
				case unix.EAGAIN, unix.EBUSY:
				default:
					r.t.Errorf("%s: open of %s/%s on %s: %v", r.op, r.dir, name, m.Name, got.Err())
				}
				return true
			})
		}
	}
}

// checkFree checks that others can have names.
func (r *namesRun) checkFree(names ...string) {
	r.t.Helper()
	other := lab.NewAgent(r.t)
	defer other.Kill()
	for _, name := range names {
		lab.Eventually(r.t, r.dir+"/"+name+" is free", func() bool {
			got := other.Do(lab.Call{Op: "open", Path: r.path(r.b, name), Flags: unix.O_WRONLY | unix.O_CREAT | unix.O_NONBLOCK})
			return got.Errno == 0 && other.Do(lab.Call{Op: "close", FD: got.N}).Errno == 0
		})
	}
}

// namesRuns runs test for each of the cases. All files are there before, for the
// volume gives the number of one that is removed to the next.
func namesRuns(v *lab.Volume, a, b *lab.Mount, test func(r *namesRun)) {
	v.T.Helper()
	var runs []*namesRun
	for _, c := range namesCases {
		runs = append(runs, newNamesRun(v, v.T, c, a, b))
	}
	for _, r := range runs {
		v.T.Run(r.dir, func(t *testing.T) {
			r.t = t
			test(r)
		})
	}
	nothingLocked(v)
}

// finish writes to what the caller has open, and closes it.
func (r *namesRun) finish() {
	r.t.Helper()
	for _, fd := range r.fds {
		r.caller.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		r.caller.Must(lab.Call{Op: "close", FD: fd})
	}
}

// nothingLocked checks that all is given back in the end.
func nothingLocked(v *lab.Volume) {
	v.T.Helper()
	lab.Eventually(v.T, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// The deadline passes while the volume changes names, and the session recovers:
// the calls answer EIO and were made all the same. The handles that were open
// go on with the locks of the names that their files have now.
func TestDeadlineDuringChangeOfNames(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	fault := withNameFaults(v)
	b, s := v.Mount("b"), v.Staged("s", 0)
	t.Cleanup(fault.done.End)
	var runs []*namesRun
	for _, c := range namesCases {
		runs = append(runs, newNamesRun(v, t, c, s.Mount, b))
	}
	if err := os.Mkdir(v.InSource("create"), 0o755); err != nil {
		t.Fatal(err)
	}
	creator := lab.NewAgent(t)
	fault.done.Shut.Store(true)
	var pending []<-chan lab.Result
	var lets []func()
	for _, r := range runs {
		p, let := fault.done.Hold(r.caller, r.call())
		pending, lets = append(pending, p), append(lets, let)
	}
	creating, let := fault.done.Hold(creator, lab.Call{Op: "open", Path: s.Path("create/f"), Flags: unix.O_WRONLY | unix.O_CREAT})
	lets = append(lets, let)
	fault.done.Shut.Store(false)

	etcd := v.EtcdPID()
	lab.Freeze(t, etcd)
	t.Cleanup(func() { _ = unix.Kill(etcd, unix.SIGCONT) })
	s.Ahead.Add(int64(12 * time.Second)) // of a TTL of 15 s, with a margin of 5 s
	for _, let := range lets {
		let()
	}
	for i, r := range runs {
		if got := lab.Await(t, r.op, pending[i]); got.Errno != unix.EIO {
			t.Errorf("%s past the deadline: %v, want EIO", r.op, got.Err())
		}
	}
	_ = unix.Kill(etcd, unix.SIGCONT)

	for _, r := range runs {
		for _, fd := range r.fds { // the session has recovered
			r.caller.Must(lab.Call{Op: "write", FD: fd, Data: "x"})
		}
		r.checkHeld(r.held...)
		r.checkFree(r.free...)
		r.checkHeld(r.held...)
		r.finish()
	}
	if got := lab.Await(t, "open", creating); got.Errno == 0 {
		r := &namesRun{namesCase: namesCase{dir: "create", op: "create"}, t: t, v: v, a: s.Mount, b: b, caller: creator, fds: []int{got.N}}
		r.checkHeld("f")
		r.finish()
	}
	nothingLocked(v)
}

// namesRunsWithFaults is namesRuns on a volume whose changes of names can fail.
func namesRunsWithFaults(t *testing.T, run func(*nameFault, *namesRun)) {
	v := lab.NewVolume(t, "--embedded")
	fault := withNameFaults(v)
	a, b := v.Mount("a"), v.Mount("b")
	namesRuns(v, a, b, func(r *namesRun) { run(fault, r) })
}

// A change of names that fails as if nobody knew what the volume has done, and
// was made: as above.
func TestChangeOfNamesFailsAndIsMade(t *testing.T) {
	t.Parallel()
	namesRunsWithFaults(t, func(fault *nameFault, r *namesRun) {
		fault.fails.Store(&nameFailure{unix.EIO, before})
		r.caller.Fails(r.call(), unix.EIO)
		fault.fails.Store(nil)
		r.checkHeld(r.held...)
		r.checkFree(r.free...)
		r.checkHeld(r.held...)
		r.finish()
	})
}

// The same, made only after its failure was answered. Until the file is closed
// all names that it may have are locked.
func TestChangeOfNamesIsMadeLater(t *testing.T) {
	t.Parallel()
	namesRunsWithFaults(t, func(fault *nameFault, r *namesRun) {
		fault.fails.Store(&nameFailure{unix.EIO, after})
		r.caller.Fails(r.call(), unix.EIO)
		fault.fails.Store(nil)
		(<-fault.later)()
		r.checkHeld(r.held...)
		r.finish()
	})
}

// A change of names that the volume refuses leaves no lock behind for a name
// that no file has got.
func TestRefusedChangeOfNames(t *testing.T) {
	t.Parallel()
	namesRunsWithFaults(t, func(fault *nameFault, r *namesRun) {
		fault.fails.Store(&nameFailure{unix.EDQUOT, never})
		r.caller.Fails(r.call(), unix.EDQUOT)
		fault.fails.Store(nil)
		r.checkHeld(r.open...)
		if r.to && r.op != "exchange" && len(r.open) == 1 {
			r.checkFree("g")
		}
		r.finish()
	})
}

// A creation that fails and has made its file leaves the file, and no lock.
func TestCreationFailsAndIsMade(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	fault := withNameFaults(v)
	a, b := v.Mount("a"), v.Mount("b")
	p, other := lab.NewAgent(t), lab.NewAgent(t)
	for _, errno := range []syscall.Errno{unix.EIO, unix.ESTALE} {
		name := unix.ErrnoName(errno)
		fault.fails.Store(&nameFailure{errno, before})
		got := p.Do(lab.Call{Op: "open", Path: a.Path(name), Flags: unix.O_WRONLY | unix.O_CREAT})
		fault.fails.Store(nil)
		switch {
		case got.Errno == 0: // it was found when the kernel looked again
			other.Fails(lab.Call{Op: "open", Path: b.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK}, unix.EAGAIN)
			p.Must(lab.Call{Op: "close", FD: got.N})
		case got.Errno != errno:
			t.Errorf("a creation that fails with %s: %v", name, got.Err())
		}
		nothingLocked(v)
		other.Must(lab.Call{Op: "close", FD: other.Open(b.Path(name), unix.O_WRONLY)})
	}
}
