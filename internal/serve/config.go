package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/netvolume"
	"github.com/lockfs/lockfs/internal/pods"
	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// Backend is a lock service as a mount needs it.
type Backend interface {
	lockmgr.Backend
	volume.RecordStore
	volume.ServiceFinder
	sessions
}

// Config says what is served, and how.
type Config struct {
	// Namespace and Name are the volume's. Required.
	Namespace, Name string
	// Source is the shared directory, Mountpoint an empty one. Required.
	Source, Mountpoint string
	// MakeMountpoint makes Mountpoint if it is missing.
	MakeMountpoint bool
	// Connect reaches the lock service; disconnect, which is not nil, is called
	// at the end. Required.
	Connect func(ctx context.Context, log *slog.Logger) (b Backend, disconnect func(), err error)
	// Embedded says that it is this machine's own, for Source alone.
	Embedded bool
	// Policy; nil means that all files are locked. SetPolicy makes it the volume's.
	Policy    *policy.Policy
	SetPolicy bool
	// Renew holds the timings of the session; its TTL is required.
	Renew renew.Config
	// Wait, NameWait, Scope and ReadLocks are the view's, see fs.Config.
	Wait, NameWait time.Duration
	Scope          policy.Scope
	ReadLocks      bool
	// Sync; "" means fs.SyncAlways if Source is on NFS, fs.SyncClose on another
	// network file system, else fs.SyncNever.
	Sync fs.Sync
	// AcceptVolume serves a Source on which rules of docs/SEMANTICS.md do not hold.
	AcceptVolume bool
	// AllowOther lets other users than the daemon's see the view.
	AllowOther bool
	// Guard makes the bare Mountpoint immutable, which only root can.
	Guard bool
	// ForPods has the log say so if other mount namespaces will not see the view.
	ForPods bool
	// WaitForWrites has Run wait at its end for writes that are under way, and
	// keep their locks, for as long as they take. Else it fails after a TTL; the
	// locks end with the lease, which the process must not outlive.
	WaitForWrites bool
	// Pool is fs.Config's.
	Pool *fs.Pool
	// Node names this machine to people; "" means its host name.
	Node string
	// Version is that of the program, for people.
	Version string
	// StateDir keeps, for as long as the machine is up, the proofs of which
	// mounts live. Required.
	StateDir string
	// SlowWait is lockmgr.Config's.
	SlowWait time.Duration
	// Metrics, if not nil, has those of this volume from New on.
	Metrics *metrics.Registry
	// Pods, if not nil, names the pods of this node, and tells them of their locks.
	Pods *pods.Pods
	// Logger; nil means slog.Default().
	Logger *slog.Logger

	network  bool                // other machines may write to Source
	findings []netvolume.Finding // of Source, as it was when it was looked at first
}

// RefusedError says that what was asked for cannot be done as it was asked.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }
func (e *RefusedError) Unwrap() error { return e.Err }

func refused(err error) error { return &RefusedError{err} }

// syncFor is the default for a file system. What a daemon that was frozen has left to
// the kernel's client of NFS, the client sends after the thaw, over what the next
// holder wrote: the server knows of no lock by which it could refuse that.
func syncFor(fstype string, network bool) fs.Sync {
	switch {
	case fstype == "nfs" || fstype == "nfs4":
		return fs.SyncAlways
	case network:
		return fs.SyncClose
	}
	return fs.SyncNever
}

// prepare refuses what cannot work, before anything is started, clears what a
// killed daemon has left at the mountpoint, and makes the paths absolute.
func (c *Config) prepare() error {
	err := mounts.CheckKernel()
	if err != nil {
		return err
	}
	if c.Source, err = mounts.CheckSource(c.Source); err != nil {
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
	if c.Sync == "" {
		c.Sync = syncFor(fstype, network)
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
	if _, err := os.Lstat(c.Mountpoint); c.MakeMountpoint && errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(c.Mountpoint, 0o755); err != nil {
			return err
		}
	}
	if err := mounts.ClearStale(c.Mountpoint); errors.As(err, new(*mounts.PathError)) {
		return refused(err)
	} else if err != nil {
		return err
	}
	if c.Mountpoint, err = mounts.CheckMountpoint(c.Source, c.Mountpoint); err != nil {
		return refused(err)
	}
	return nil
}

// needsHostPIDs returns a scope, of the mount or of a rule, that tells callers
// apart by their processes; "" if there is none.
func (c *Config) needsHostPIDs() policy.Scope {
	if c.Scope.NeedsHostPIDs() {
		return c.Scope
	}
	for _, r := range c.Policy.Rules() {
		if r.Scope.NeedsHostPIDs() {
			return r.Scope
		}
	}
	return ""
}
