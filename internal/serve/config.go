package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/netvolume"
	"github.com/lockfs/lockfs/internal/pods"
	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/internal/supervise"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// Backend is what a mount needs of a lock service.
type Backend interface {
	lockmgr.Backend
	lockmgr.Adopter
	volume.RecordStore
	volume.ServiceFinder
	sessions
}

// Lender is a Backend whose lock service may be a process that ends with this one, unless it is lent
// to another process, with the mount.
type Lender interface {
	// Lend returns descriptors by which another process can adopt the service. They stay this
	// one's. nil: it does not end with this process.
	Lend() []int
	// GoOn ends Lend.
	GoOn()
	// Leave lets the other process have the service.
	Leave()
	// Adopt takes over the service of another process, and takes the files.
	Adopt(files []*os.File)
	// Tell tells f now, and at each change, what Lend would return.
	Tell(f func(fds []int))
}

// Config is one volume to serve.
type Config struct {
	// Namespace and Name are the volume's. Required.
	Namespace, Name string
	// Source is the shared directory, Mountpoint an empty directory. Required.
	Source, Mountpoint string
	// MakeMountpoint makes Mountpoint if it is missing.
	MakeMountpoint bool
	// Connect connects to the lock service. disconnect, which is not nil, is called at the
	// end. Required.
	Connect func(ctx context.Context, log *slog.Logger) (b Backend, disconnect func(), err error)
	// Embedded: the lock service is this machine's own, for Source alone.
	Embedded bool
	// Policy says which files are locked; nil: all. SetPolicy makes it the volume's.
	Policy    *policy.Policy
	SetPolicy bool
	// Former is enforced too, while the volume's policy changes from it to Policy; nil: it does not
	// change.
	Former *policy.Terms
	// Renew has the timings of the session. Its TTL is required.
	Renew renew.Config
	// Wait, NameWait, Scope, ReadLocks and Flock are those of fs.Config.
	Wait, NameWait time.Duration
	// Keep is that of lockmgr.Config.
	Keep      time.Duration
	Scope     policy.Scope
	ReadLocks bool
	Flock     policy.Flock
	// Sync says when written bytes must be on the volume; "": fs.SyncAlways on NFS,
	// fs.SyncClose on another network file system, else fs.SyncNever.
	Sync fs.Sync
	// Worker, if not nil, is this process: what it serves outlives it.
	Worker *supervise.Worker
	// AcceptVolume serves a volume on which rules of docs/SEMANTICS.md do not hold.
	AcceptVolume bool
	// AllowOther lets users other than the daemon's use the view.
	AllowOther bool
	// Guard makes the bare Mountpoint immutable, which needs root.
	Guard bool
	// ForPods logs a warning if other mount namespaces will not see the view.
	ForPods bool
	// TakeOver takes the mount over from a running daemon that serves it with the same settings.
	TakeOver bool
	// WaitForWrites makes Run wait at its end for writes under way, which keep their locks.
	// Without it Run fails after a TTL, and the process must not outlive the leases.
	WaitForWrites bool
	// Pool is that of fs.Config.
	Pool *fs.Pool
	// Node is the name of this machine for people; "": its host name.
	Node string
	// Version is the program's, for people.
	Version string
	// StateDir keeps the proofs of which mounts are alive, for as long as the machine is up.
	// Required.
	StateDir string
	// SlowWait is that of lockmgr.Config.
	SlowWait time.Duration
	// Metrics, if not nil, gets this volume's metrics from New on.
	Metrics *metrics.Registry
	// Pods, if not nil, knows the names of this node's pods, and puts events on them.
	Pods *pods.Pods
	// Logger is used for everything; nil: slog.Default().
	Logger *slog.Logger

	taking   bool                // there is a view that another daemon serves, and will hand on, or has served
	record   *journal.Part       // where a next process finds what this one leaves; nil: nowhere
	network  bool                // other machines may write to Source
	below    mounts.Attrs        // that file systems mounted below Source have
	findings []netvolume.Finding // what is wrong with Source, when it was first looked at
}

// RefusedError is a configuration that cannot work.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

func refused(err error) error { return &RefusedError{err} }

// syncFor: on NFS a frozen daemon may leave dirty pages to the kernel's client, which sends them
// after the thaw over the next holder's writes.
func syncFor(fstype string, network bool) fs.Sync {
	switch {
	case fstype == "nfs" || fstype == "nfs4":
		return fs.SyncAlways
	case network:
		return fs.SyncClose
	}
	return fs.SyncNever
}

// strictest considers file systems mounted below SOURCE: one may need more than sync.
func strictest(sync fs.Sync, below []mounts.Mount) fs.Sync {
	order := []fs.Sync{fs.SyncNever, fs.SyncClose, fs.SyncAlways}
	for _, m := range below {
		if s := syncFor(m.FSType, m.Network()); slices.Index(order, s) > slices.Index(order, sync) {
			sync = s
		}
	}
	return sync
}

// attrsOf returns what some mount forbids: set-user-ID programs, devices. The view forbids it. Programs
// that may not run in a part of the volume are refused there: an open to run one is made on the volume.
func attrsOf(below []mounts.Mount) (attrs mounts.Attrs) {
	for _, m := range below {
		attrs |= m.Attrs() & (mounts.NoSUID | mounts.NoDev)
	}
	return attrs
}

// prepare refuses what cannot work, clears what a killed daemon left, and makes paths absolute.
func (c *Config) prepare() error {
	err := mounts.CheckKernel()
	if err != nil {
		return err
	}
	if c.Source, err = mounts.CheckSource(c.Source); err != nil {
		if path := new(mounts.PathError); errors.As(err, &path) && path.MayPass() {
			return err
		}
		return refused(err)
	}
	fstype, network, err := mounts.NetworkFS(c.Source)
	if err != nil {
		return err
	}
	c.network = network
	if c.findings, err = netvolume.Look(c.Source, c.Embedded); err != nil {
		return err
	}
	if broken := netvolume.Broken(c.findings); len(broken) > 0 && !c.AcceptVolume {
		return &netvolume.RefusedError{Source: c.Source, Findings: broken}
	}
	below, err := mounts.Below(c.Source)
	if err != nil {
		return err
	}
	c.below = attrsOf(below)
	if c.Sync == "" {
		c.Sync = strictest(syncFor(fstype, network), below)
	}
	if c.Scope == "" {
		c.Scope = policy.ScopeAuto
	}
	if scope := c.needsHostPIDs(); scope != "" && !(procid.Proc{}).InHostPIDNamespace() {
		return refused(fmt.Errorf("scope %s: callers cannot be told apart outside the host's PID namespace: share it (in Kubernetes: hostPID: true), or use scope handle or node", scope))
	}
	if err := mounts.CheckFuse(); err != nil {
		return err
	}
	if c.taking {
		return nil
	}
	if _, err := os.Lstat(c.Mountpoint); c.MakeMountpoint && errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(c.Mountpoint, 0o755); err != nil {
			return err
		}
	}
	// A dead view stays until the new one is about to be mounted: programs get errors from it, and
	// would write into the directory below.
	overDead, err := mounts.Dead(c.Mountpoint)
	switch {
	case errors.As(err, new(*mounts.PathError)):
		return refused(err)
	case err != nil:
		return err
	case overDead:
		c.Mountpoint, err = mounts.Resolve(c.Mountpoint)
		return err
	}
	return c.checkMountpoint()
}

func (c *Config) checkMountpoint() (err error) {
	switch c.Mountpoint, err = mounts.CheckMountpoint(c.Source, c.Mountpoint); {
	case errors.As(err, new(*mounts.MountedError)):
		return err
	case err != nil:
		return refused(err)
	}
	return nil
}

// needsHostPIDs returns the first scope that tells callers apart by process, or "".
func (c *Config) needsHostPIDs() policy.Scope {
	if c.Scope.NeedsHostPIDs() {
		return c.Scope
	}
	for _, r := range c.enforced().Rules() {
		if r.Scope.NeedsHostPIDs() {
			return r.Scope
		}
	}
	return ""
}

// terms are Policy and Flock.
func (c *Config) terms() policy.Terms {
	return policy.Terms{Policy: c.Policy, Flock: cmp.Or(c.Flock, policy.FlockLocal)}
}

// policies are the digests of what the mount enforces.
func (c *Config) policies() []string {
	if c.Former == nil {
		return []string{c.terms().Digest()}
	}
	return []string{c.terms().Digest(), c.Former.Digest()}
}

// enforced is the view's policy.
func (c *Config) enforced() *policy.Policy {
	if c.Former == nil {
		return c.Policy
	}
	return policy.Both(c.terms(), *c.Former, c.Scope)
}
