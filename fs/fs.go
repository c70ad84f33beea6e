package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// Subtype is what mount(8) shows as the type: fuse.lockfs.
const Subtype = "lockfs"

// Config configures a view.
type Config struct {
	// Source is the shared directory. Required.
	Source string
	// Locks takes the locks. Required. The caller closes it after the view.
	Locks *lockmgr.Manager
	// Scope; "": policy.ScopeAuto.
	Scope policy.Scope
	// Wait is how long an open waits for a lock; 0: not at all, negative: for ever.
	Wait time.Duration
	// NameWait is how long other requests try while the holder is on another mount; 0: not at all.
	NameWait time.Duration
	// ReadLocks makes readers take shared locks: nobody writes a file that is open for read.
	ReadLocks bool
	// Flock; "": policy.FlockLocal. policy.FlockCluster needs a service that keeps advisory locks.
	Flock policy.Flock
	// Sync; "": SyncNever.
	Sync Sync
	// Policy says which files are locked, and how; nil: all, as above.
	Policy *policy.Policy
	// Below is which of unix.ST_NOSUID and unix.ST_NODEV some file system mounted below Source has. All
	// of the view has it too: a mount cannot have it in a part.
	Below int64
	// AllowOther lets other users than the daemon's see the view.
	AllowOther bool
	// PodName, if not nil, returns at once a caller's pod and container, for people.
	PodName func(procid.Caller) (name, container string)
	// Pool; nil: its own, right for a process with one view.
	Pool *Pool
	// Record, if not nil, is where a next process finds what this one leaves when it dies.
	Record *journal.Part
	// Deaths is how many daemons of this mount have died before this one soon after their starts.
	Deaths int
	// Logger; nil: slog.Default().
	Logger *slog.Logger
}

// FS is a mounted view. Its methods, except Wait, Close and Stats, are the kernel's requests.
type FS struct {
	fuse.RawFileSystem // ENOSYS for all others

	locker
	actor
	openFiles
	log        *slog.Logger
	advisory   *lockmgr.Advisory                                // nil: advisory locks are the kernel's
	invalidate func(node uint64, off, length int64) fuse.Status // kernel's
	source     string
	doubts     chan struct{} // see Doubts
	record     *journal.Part
	calls      calls

	kernel connection
	dirs   table[dirHandle]
	visits visits
	counts counters

	housekeeping housekeeping

	// See Close.
	filesClosing sync.Once
	filesClosed  chan struct{} // closed when programs have nothing open
}

// Mount mounts and serves a view of cfg.Source at mountpoint, an empty directory.
func Mount(mountpoint string, cfg Config) (*FS, error) {
	if cfg.Locks == nil {
		return nil, errors.New("fs: Config.Locks is required")
	}
	if cfg.Pool == nil {
		cfg.Pool = NewPool()
	}
	source, err := openBacking(cfg.Source)
	if err != nil {
		return nil, err
	}
	f := newFS(source, mountpoint, cfg)
	if err := f.equip(cfg); err != nil {
		f.nodes.close()
		return nil, err
	}
	first, err := f.kernel.mount(f.root)
	if err != nil {
		f.nodes.close()
		return nil, fmt.Errorf("mount a view of %s at %s: %w", cfg.Source, mountpoint, err)
	}
	f.kernel.identify()
	f.control()
	if err := f.recordAll(); err != nil {
		f.log.Error("if the daemon dies, programs lose the files that they have open in this view", slog.Any("error", err))
		f.record.Void()
	}
	f.kernel.serve(first)
	f.housekeeping.begin()
	return f, nil
}

// equip prepares for the kernel's requests.
func (f *FS) equip(cfg Config) (err error) {
	if cfg.Flock == policy.FlockCluster || cfg.Policy.SharesFlocks() {
		if f.advisory, err = cfg.Locks.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: f.advisoryLost, OnShared: f.flushTable}); err != nil {
			return err
		}
	}
	f.kernel.options = f.mountOptions(cfg)
	// Files get only the caller's umask.
	unix.Umask(0)
	return nil
}

func newFS(source backing, mountpoint string, cfg Config) *FS {
	log := cmp.Or(cfg.Logger, slog.Default())
	f := &FS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		locker: locker{
			locks:    cfg.Locks,
			callers:  callers{podName: cfg.PodName, readLocks: cfg.ReadLocks},
			rules:    rules{policy: cfg.Policy, scope: cmp.Or(cfg.Scope, policy.ScopeAuto), wait: cfg.Wait, flock: cmp.Or(cfg.Flock, policy.FlockLocal)},
			files:    files{backing: source, nodes: newNodes(source.root, source.inode, cfg.Pool)},
			nameWait: cfg.NameWait,
			log:      log,
		},
		actor:       actor{root: os.Geteuid() == 0},
		openFiles:   openFiles{sync: cmp.Or(cfg.Sync, SyncNever), log: log},
		log:         log,
		source:      cfg.Source,
		record:      cfg.Record,
		calls:       calls{record: cfg.Record, log: log, deaths: cfg.Deaths, own: make(map[uint64]slot)},
		doubts:      make(chan struct{}, 1),
		filesClosed: make(chan struct{}),
	}
	f.kernel = connection{requests: counting{f}, mountpoint: mountpoint, log: f.log, recorded: cfg.Record != nil, device: -1, abort: -1, ended: make(chan struct{})}
	f.invalidate = f.kernel.invalidate
	f.housekeeping = newHousekeeping(f.keepHouse)
	f.nodes.resolve = source.resolve
	f.nodes.record, f.visits.record = cfg.Record, cfg.Record
	f.gates = f.newGates(cfg.Pool.memory, f.log)
	f.gates.volume.waits = f.calls.wait
	return f
}

// control comes before the first request.
func (f *FS) control() {
	f.kernel.control()
	f.callers.dev = f.kernel.dev
}

func (f *FS) keepHouse(ctx context.Context) {
	var shedding sync.WaitGroup
	shedding.Go(func() { f.shedder().run(ctx) })
	f.flushOnTrouble(ctx, f.locks.Trouble())
	shedding.Wait()
}

func (f *FS) mountOptions(cfg Config) *fuse.MountOptions {
	return &fuse.MountOptions{
		Name:          Subtype,
		FsName:        cfg.Source,
		AllowOther:    cfg.AllowOther,
		Options:       f.inherited(cfg.Below),
		MaxWrite:      maxWrite,
		MaxBackground: background,
		Logger:        newLibraryLogger(f.log, &f.kernel.pausing),
		// ATOMIC_O_TRUNC: truncate with the OPEN, under its lock. HANDLE_KILLPRIV_V2: no request
		// for security.capability before each write. DIRECT_IO_ALLOW_MMAP: map O_RDWR|O_APPEND
		// handles, which are direct. DONT_MASK: see actor.as. SETXATTR_EXT: setfacl says when to
		// clear the set-group-id bit.
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_HANDLE_KILLPRIV_V2 | fuse.CAP_DIRECT_IO_ALLOW_MMAP |
			fuse.CAP_DONT_MASK | fuse.CAP_SETXATTR_EXT,
		EnableAcl:   true, // the kernel checks ACLs
		EnableLocks: f.advisory != nil,
		// The library would answer EIO and go on, perhaps with a mutex locked for ever under a session that
		// is renewed. So the process ends, and --supervise starts the next one.
		PanicHandler: func(v any) fuse.Status { panic(v) },
	}
}

// dropAttrs makes the kernel forget a file's attributes, and replies under way with them.
func (f *FS) dropAttrs(n *node) { f.invalidate(n.id, -1, 0) }

// dropPages makes the kernel write back a file's mappings, and forget all it has of the file.
func (f *FS) dropPages(n *node) { f.invalidate(n.id, 0, 0) }

// String names the file system in the library's messages.
func (f *FS) String() string { return Subtype }

// Covered reports whether another mount is at the view's mountpoint, over the view or in its place.
func (f *FS) Covered() bool { return f.kernel.covered() }

// Wait returns when the view has been unmounted, by Close or by anybody else. An error says why the
// view could not go on after a pause, or a takeover.
func (f *FS) Wait() error {
	<-f.kernel.ended
	return f.kernel.failed
}
