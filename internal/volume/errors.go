package volume

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// ErrNewer: the volume was made by a newer lockfs, in a format this one does
// not know.
var ErrNewer = errors.New("made by a newer lockfs")

// MismatchError reports that SOURCE, the lock service and the command line mean different
// volumes. Nothing was changed.
type MismatchError struct {
	Source string // the directory
	Field  string // what disagrees: "namespace", "name" or "volume id"
	Marker string // what the marker in Source says; empty when there is none
	Asked  string // what the mount was asked for; empty for the volume id
	Record string // what the lock service says; empty if it was not asked
	Volume string // namespace/name, as asked for
}

func (e *MismatchError) Error() string {
	switch {
	case e.Marker == "":
		return fmt.Sprintf("the lock service knows volume %s as %s, but %s has no marker %s: it is not the directory that was mounted under this name, or lost its marker; "+
			"mount it under another --name, or restore the marker", e.Volume, e.Record, e.Source, MarkerName)
	case e.Asked != "" && e.Record == "":
		return fmt.Sprintf("%s belongs to the volume with %s %q, this mount asks for %q: the two would not exclude each other; "+
			"mount with --%s=%s; if this is a copy that stands for itself, remove its %s",
			e.Source, e.Field, e.Marker, e.Asked, e.Field, e.Marker, MarkerName)
	default:
		return fmt.Sprintf("%s of %s: the marker %s says %s, the lock service says %s for volume %s: another directory has this name; "+
			"mount under another --name, or, if this is a copy that stands for itself, remove its marker first",
			e.Field, e.Source, MarkerName, e.Marker, e.Record, e.Volume)
	}
}

// PolicyError reports that a mount's policy is not the volume's. Nothing was changed.
type PolicyError struct {
	Volume string // namespace/name
	Record string // the digest of the volume's policy
	Asked  string // the digest of the mount's

	// Flock is the mount's, if they differ in nothing else; else empty.
	Flock policy.Flock
}

func (e *PolicyError) Error() string {
	if e.Flock != "" {
		return fmt.Sprintf("volume %s has --flock %s, this mount has --flock %s: their programs would not exclude each other by flock and fcntl; "+
			"mount with --flock %[2]s, or, to change it for all, use --former-flock, or unmount them all and mount the first with --set-policy", e.Volume, e.Flock.Other(), e.Flock)
	}
	return e.differ("this mount has") + ": with two policies they would not exclude each other; " +
		"mount with the --policy and --rule of the other mounts, or, to change it for all, use --former-policy, or unmount them all and mount the first with --set-policy"
}

// Differ names both policies, for a command that is no mount.
func (e *PolicyError) Differ() string { return e.differ("these are") }

func (e *PolicyError) differ(asked string) string {
	return fmt.Sprintf("volume %s has policy %s, %s %s", e.Volume, describe(e.Record), asked, describe(e.Asked))
}

func describe(digest string) string {
	switch digest {
	case (*policy.Policy)(nil).Digest(policy.FlockLocal):
		return short(digest) + " (no rules)"
	case (*policy.Policy)(nil).Digest(policy.FlockCluster):
		return short(digest) + " (no rules, --flock cluster)"
	}
	return short(digest)
}

func short(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

// FormatError reports a volume that an older lockfs has made. Its mounts would not understand
// those of this one.
type FormatError struct {
	Source  string // the directory
	Format  int
	Service lockmgr.Service // the one that was asked
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("the volume of %s is of format %d, which is older than this lockfs: stop every mount of it, then run 'lockfs move --to %s %s' "+
		"with the settings of the lock service that it has", e.Source, e.Format, e.Service, e.Source)
}

// ServiceError reports that a volume has its locks in another lock service. Nothing was
// changed.
type ServiceError struct {
	Source string          // the directory
	Has    lockmgr.Service // the volume's, as its marker says
	Asked  lockmgr.Service // the one that was asked
	Moved  lockmgr.Service // the service to which the volume has moved, as the asked one says; may be zero
}

func (e *ServiceError) Error() string {
	if e.Moved.ID != uuid.Nil && !e.Moved.Is(e.Asked) {
		return fmt.Sprintf("the lock service %s says that the volume of %s has moved to %s, which its marker %s does not say yet: "+
			"finish that with 'lockfs move --to %s %s' and the settings of the former", e.Asked, e.Source, e.Moved, MarkerName, e.Moved, e.Source)
	}
	if e.Has.Is(e.Asked) {
		return fmt.Sprintf("the marker %s of %s is older than what the lock service %s has: put the newer one back, or, with every mount stopped, run 'lockfs move --to %s %s'",
			MarkerName, e.Source, e.Asked, e.Asked, e.Source)
	}
	return fmt.Sprintf("the volume of %s has its locks in %s, and this is %s: the two would not exclude each other; "+
		"use the former, or move the volume: stop every mount of it, then run 'lockfs move --to %s %s' with the settings of the former",
		e.Source, e.Has, e.Asked, e.Asked, e.Source)
}

// OtherServiceError reports a search for a volume's locks in a lock service that does not
// have them.
type OtherServiceError struct {
	Source string          // the directory
	Has    lockmgr.Service // which the volume has
	Asked  lockmgr.Service // the one that was asked; its ID is uuid.Nil where it knows nothing of the volume
}

func (e *OtherServiceError) Error() string {
	asked := e.Asked.String()
	if e.Asked.ID == uuid.Nil {
		asked = fmt.Sprintf("%s at %s, which knows nothing of it", e.Asked.Kind, e.Asked.At)
	}
	return fmt.Sprintf("the volume of %s has its locks in %s, and this is %s: give the settings of the former", e.Source, e.Has, asked)
}

// NamesError reports a directory in which two names are of one file.
type NamesError struct {
	Source, One, Other string
}

func (e *NamesError) Error() string {
	return fmt.Sprintf("SOURCE %s takes the names %+q and %+q for one: a file would have a lock for each of its spellings, which exclude nobody; "+
		"use a file system, or mount options of it, that tell them apart (case-sensitive, without normalization)", e.Source, e.One, e.Other)
}

// InvalidError reports a marker or a record that cannot be read as one.
type InvalidError struct {
	Where string // the marker's path, or the record's place
	Err   error  // ErrNewer, or what is wrong with it
}

func (e *InvalidError) Error() string {
	if errors.Is(e.Err, ErrNewer) {
		return fmt.Sprintf("%s: %v; upgrade lockfs on this node", e.Where, e.Err)
	}
	return fmt.Sprintf("%s is damaged or not lockfs's: %v; restore it from a backup, or, when no node has the volume mounted, remove it", e.Where, e.Err)
}

func (e *InvalidError) Unwrap() error { return e.Err }
