package lockmgr

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Backend keeps the locks of one volume in a lock service. Implementations are safe for concurrent
// use, and pass lockmgrtest.Conformance.
type Backend interface {
	// OpenSession starts a session that the service ends ttl after its last renewal. Errors:
	// ErrUnavailable, ctx's.
	OpenSession(ctx context.Context, info SessionInfo, ttl time.Duration) (Session, error)

	// Entries returns the entries at and below prefix and of directories above, by path and token;
	// "" is the whole volume. Inode entries come last: all of them, or those taken with a listed
	// name.
	Entries(ctx context.Context, prefix string) ([]Entry, error)

	// Rivals returns the entries that conflict with k, also of directories above, and of all below
	// a directory, by path and token. The volume's size does not matter. It may be a moment old.
	Rivals(ctx context.Context, k Key) ([]Entry, error)

	Breaker
	Recaller
}

// SessionInfo describes a mount to people.
type SessionInfo struct {
	Node       string    `json:"node"`
	BootID     string    `json:"boot_id"`
	Mountpoint string    `json:"mountpoint"`
	Pod        string    `json:"pod,omitempty"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	// Lifeline names the proof, on the mount's machine, that the mount lives or is dead.
	Lifeline string `json:"lifeline,omitempty"`
	// Policies are the digests of the policies that the mount enforces.
	Policies []string `json:"policies,omitempty"`
}

// Enforces reports whether the mount enforces the policy with a digest.
func (i *SessionInfo) Enforces(policy string) bool { return slices.Contains(i.Policies, policy) }

// ParseSessionInfo reads the JSON that a backend has stored under name.
func ParseSessionInfo(name string, record []byte) (info SessionInfo, err error) {
	if err := json.Unmarshal(record, &info); err != nil {
		return info, fmt.Errorf("session record %s: %w", name, err)
	}
	return info, nil
}

// Session is one mount's session in the lock service. All its locks end with it.
type Session interface {
	// ID names the session in the lock service.
	ID() string

	// TTL is the smaller of the requested and the granted time to live.
	TTL() time.Duration

	// Renew asks once to extend the session. nil: the service did, after Renew was called.
	// ErrSessionLost: the session is gone. Any other error proves nothing.
	Renew(ctx context.Context) error

	// Done is closed by Close, and when the service reports the end of the session.
	Done() <-chan struct{}

	// Acquire takes all keys or none, and returns the Grants in the order of req.Keys. Errors:
	//
	//   - ErrContended, as a *ContendedError: the wait is over;
	//   - ErrUnavailable: the wait ended without an answer from the service;
	//   - ErrSessionLost;
	//   - ErrDeadlock: it would wait for a request that waits for what it upgrades.
	//
	// The first two wrap ctx's error if ctx ended the wait. After an error, entries that may have
	// been put are removed in the background, by Close at the latest. If they block this mount
	// until then, the error is a *LeftoverError.
	Acquire(ctx context.Context, req AcquireRequest) ([]Grant, error)

	// Release gives a grant up after comparing its token. Errors: ErrNotHeld, ErrNotOwner,
	// ErrUnavailable (release again), ctx's.
	Release(ctx context.Context, g Grant) error

	// Undisturbed reports whether no entry can have been put for a directory at or above k between
	// two grants of this mount, with the fencing tokens from and to. The later one is of k, and the
	// earlier one of something in one of these directories. It sends no request.
	Undisturbed(k Key, from, to int64) bool

	// Held returns which grants the service still has, in a linearizable read.
	Held(ctx context.Context, grants []Grant) ([]bool, error)

	// Watch calls gone, within seconds, for each grant of held that the service no longer has. It
	// returns when ctx or the session ends. It calls held often. The number of requests does not
	// grow with the number of grants.
	Watch(ctx context.Context, held func() []Grant, gone func(Grant))

	// Close ends the session with its grants and waits, at once or, if the service cannot be
	// reached before ctx ends, by its TTL.
	Close(ctx context.Context) error
}

// Wait says what an Acquire does under contention.
type Wait uint8

const (
	// NoWait fails at once with ErrContended or ErrUnavailable.
	NoWait Wait = iota
	// Retry puts no entry while contended, so no request queues behind it. It retries whenever the
	// holder changes.
	Retry
	// Queue stands in line, in order of arrival. File keys only.
	Queue
)

// AcquireRequest asks for locks.
type AcquireRequest struct {
	Keys   []Key // at least one, none twice; no Tree key in Shared mode
	Mode   Mode
	Holder Holder // its AcquisitionID must be fresh
	Wait   Wait
	// Waits, if not nil, is called once before the request waits for another owner.
	Waits func()
	// Upgrades are the owner's Shared grants of some Keys. They do not block the request, and
	// stay.
	Upgrades []Grant
	// Keep: the mount may keep the entry while unused. Requests that wait for it put a Recall.
	Keep bool
	// Again: the Holder's entry may stand already, and then keeps its place. See HandsOn.
	Again bool
}

// Validate returns ErrInvalidKey for a request that no backend grants.
func (r AcquireRequest) Validate() error {
	if len(r.Keys) == 0 {
		return fmt.Errorf("%w: no keys", ErrInvalidKey)
	}
	if r.Mode == Delegated && (len(r.Keys) > 1 || r.Keys[0].Kind != Tree || r.Wait != NoWait || !r.Keep) {
		return fmt.Errorf("%w: %s cannot be delegated so", ErrInvalidKey, r.Keys[0])
	}
	for _, k := range r.Keys {
		if k.Kind == Tree && (r.Wait == Queue || r.Mode == Shared) {
			return fmt.Errorf("%w: %s is a directory and cannot be queued for, or shared", ErrInvalidKey, k)
		}
	}
	return nil
}

// Waiting calls Waits the first time.
func (r *AcquireRequest) Waiting() {
	if r.Waits != nil {
		r.Waits()
		r.Waits = nil
	}
}

// Grant returns the grant of k, one of Keys.
func (r *AcquireRequest) Grant(k Key, token int64) Grant {
	return Grant{Key: k, Mode: r.Mode, AcquisitionID: r.Holder.AcquisitionID, Token: token}
}

// Deadlocks reports whether an earlier Exclusive entry waits for a grant that the request
// upgrades.
func (r *AcquireRequest) Deadlocks(earlier Grant) bool {
	return earlier.Mode == Exclusive && slices.ContainsFunc(r.Upgrades, func(had Grant) bool { return had.Key == earlier.Key })
}

// UpgradeIDs returns the acquisitions of the grants of k among Upgrades.
func (r *AcquireRequest) UpgradeIDs(k Key) (ids []AcquisitionID) {
	for _, g := range r.Upgrades {
		if g.Key == k {
			ids = append(ids, g.AcquisitionID)
		}
	}
	return ids
}

// Grant is one key held.
type Grant struct {
	Key           Key
	Mode          Mode
	AcquisitionID AcquisitionID
	// Token is the fencing token. Of two grants of conflicting keys, the later one has the larger
	// token, over the life of the volume.
	Token int64
}

// Blocks reports whether g's entry, put before later's, keeps later waiting. upgrades are the
// acquisitions that later upgrades.
func (g Grant) Blocks(later Grant, upgrades []AcquisitionID) bool {
	return g.Mode.Conflicts(later.Mode) && g.Key.Conflicts(later.Key) &&
		!(g.Key == later.Key && slices.Contains(upgrades, g.AcquisitionID))
}

// FencingToken returns the token of the entry's present owner.
func (e Entry) FencingToken() int64 {
	return cmp.Or(e.Holder.Fencing, FencingToken(e.Token, e.Holder.Turn))
}

// Entry is an acquisition of one key in the service.
type Entry struct {
	Key    Key
	Mode   Mode
	Holder Holder
	Token  int64
	Held   bool // else it waits

	// Range is set for an advisory lock, whose Key is its file's inode.
	Range *Range
}

// Range is what a flock or fcntl lock covers.
type Range struct {
	Kind       advisory.Kind
	Start, End uint64 // the first and the last byte; advisory.EOF: the end of the file
}

// State is what listings say of the entry: held, waiting, or kept, which nobody has open.
func (e Entry) State() string {
	switch {
	case !e.Held:
		return "waiting"
	case e.Holder.Kept:
		return "kept"
	}
	return "held"
}

// Grant returns the grant that the entry is, or waits for.
func (e Entry) Grant() Grant {
	return Grant{Key: e.Key, Mode: e.Mode, AcquisitionID: e.Holder.AcquisitionID, Token: e.Token}
}

// LeftoverError is the error of an Acquire whose entries may still block others.
type LeftoverError struct {
	Err  error
	Gone <-chan struct{} // closed when no entry stands
}

func (e *LeftoverError) Error() string { return e.Err.Error() }
func (e *LeftoverError) Unwrap() error { return e.Err }

// ContendedError is ErrContended with the holder, if it is known.
type ContendedError struct {
	Key    Key
	Holder Holder
	Err    error // why the wait ended; nil: no wait
}

func (e *ContendedError) Error() string {
	s := e.Key.String() + ": " + ErrContended.Error()
	if !e.Holder.AcquisitionID.IsZero() {
		s += " (" + e.Holder.String() + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *ContendedError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrContended}
	}
	return []error{ErrContended, e.Err}
}
