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

// Backend keeps the locks of one volume in a lock service. Implementations
// are safe for concurrent use and pass lockmgrtest.Conformance.
type Backend interface {
	// OpenSession starts a session that the service ends by itself ttl after
	// it last heard of it. Errors: ErrUnavailable, ctx's.
	OpenSession(ctx context.Context, info SessionInfo, ttl time.Duration) (Session, error)

	// Entries returns the entries at prefix and below it, and those of the directories
	// above, in order of path and then of token. The empty prefix is the whole volume.
	// Entries of inodes come last: all of the volume's, or those that were taken
	// together with a name that is listed.
	Entries(ctx context.Context, prefix string) ([]Entry, error)

	// Rivals returns the entries that conflict with k: those of k itself, of directories
	// above it, and of what is below it if it is a directory. They are in order of path
	// and then of token. The cost depends on k, not on the size of the volume. If it is
	// called often, the answer may be a moment old.
	Rivals(ctx context.Context, k Key) ([]Entry, error)

	Breaker
	Recaller
}

// SessionInfo describes a mount to people who look at the lock service.
type SessionInfo struct {
	Node       string    `json:"node"`
	BootID     string    `json:"boot_id"`
	Mountpoint string    `json:"mountpoint"`
	Pod        string    `json:"pod,omitempty"`
	Version    string    `json:"version"`
	Started    time.Time `json:"started"`
	// Lifeline names, on its machine, the proof that the mount lives or has died.
	Lifeline string `json:"lifeline,omitempty"`
}

// ParseSessionInfo reads what a backend has stored as JSON under name.
func ParseSessionInfo(name string, record []byte) (info SessionInfo, err error) {
	if err := json.Unmarshal(record, &info); err != nil {
		return info, fmt.Errorf("session record %s: %w", name, err)
	}
	return info, nil
}

// Session is one mount's life in the lock service. Everything acquired on it
// ends with it.
type Session interface {
	// ID names the session in the lock service.
	ID() string

	// TTL is the session's time to live: the smaller of the one asked for
	// and the one granted.
	TTL() time.Duration

	// Renew asks the service once to extend the session by its TTL. nil means
	// that the service did, at some time after Renew was called. ErrSessionLost
	// means that the session is no more; any other error says nothing.
	Renew(ctx context.Context) error

	// Done is closed when the service reports the end of the session by
	// itself, ahead of the next renewal, and by Close.
	Done() <-chan struct{}

	// Acquire takes all keys of req at once, or none.
	//
	// It returns one Grant a key, in the order of req.Keys. Errors:
	//
	//   - ErrContended, as a *ContendedError: the wait is over;
	//   - ErrUnavailable: the wait ended without an answer from the service;
	//   - ErrSessionLost;
	//   - ErrDeadlock: it would wait for a request that waits for what it upgrades.
	//
	// The first two wrap ctx's error if ctx ended the wait. After an error nothing stays
	// in the service: entries that may have been put are removed in the background, by
	// the time Close returns at the latest, or with the session. If they are in the way
	// of this mount's requests until then, the error is a *LeftoverError.
	Acquire(ctx context.Context, req AcquireRequest) ([]Grant, error)

	// Release gives a grant up, after comparing its token. Errors: ErrNotHeld,
	// ErrNotOwner, ErrUnavailable (the caller tries again), ctx's.
	Release(ctx context.Context, g Grant) error

	// Undisturbed reports whether the service is known to have let nobody lock a directory
	// between two grants of the mount, from the one with the token from to the one with to. It
	// sends no request.
	Undisturbed(from, to int64) bool

	// Held returns which of grants the service still has. It is one read that
	// sees every write answered before it began.
	Held(ctx context.Context, grants []Grant) ([]bool, error)

	// Watch calls gone, within seconds, for each grant that held returns and the service
	// does not have any more, whoever removed it. It returns when ctx ends, or the
	// session. held is called often. The number of requests to the service does not grow
	// with the number of grants.
	Watch(ctx context.Context, held func() []Grant, gone func(Grant))

	// Close ends the session and with it every grant and every wait on it,
	// now if the service can be reached before ctx ends, else by its TTL.
	Close(ctx context.Context) error
}

// Wait says how an Acquire meets contention.
type Wait uint8

const (
	// NoWait is answered ErrContended, or ErrUnavailable, at once.
	NoWait Wait = iota
	// Retry puts nothing into the service while contended, so that no request queues
	// behind it. It tries again whenever the holder changes, until ctx ends.
	Retry
	// Queue stands in line, in order of arrival, until ctx ends. File keys only.
	Queue
)

// AcquireRequest asks for locks.
type AcquireRequest struct {
	Keys   []Key // at least one, none twice; no Tree key in Shared mode
	Mode   Mode
	Holder Holder // its AcquisitionID must be fresh
	Wait   Wait
	// Waits, if not nil, is called when the request has found that it has to
	// wait for another owner, before it does: once, and not for NoWait.
	Waits func()
	// Upgrades are Shared grants of some of Keys that the same owner has. They are not
	// in its way, and stay as they are.
	Upgrades []Grant
	// Keep: the mount may keep the entry while nobody uses it. A request that waits for such
	// an entry puts a Recall.
	Keep bool
}

// Validate returns ErrInvalidKey for a request that no backend grants.
func (r AcquireRequest) Validate() error {
	if len(r.Keys) == 0 {
		return fmt.Errorf("%w: no keys", ErrInvalidKey)
	}
	if r.Mode > Shared {
		return fmt.Errorf("%w: a directory is delegated by Delegate", ErrInvalidKey)
	}
	for _, k := range r.Keys {
		if k.Kind == Tree && (r.Wait == Queue || r.Mode == Shared) {
			return fmt.Errorf("%w: %s is a directory and cannot be queued for, or shared", ErrInvalidKey, k)
		}
	}
	return nil
}

// Waiting calls Waits, the first time.
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

// Deadlocks reports whether the request would wait for ever for an earlier entry: one that
// wants for itself alone what the request upgrades, and so waits for the owner's grant.
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
	// Token is the fencing token: of two grants of conflicting keys, the
	// later one has the larger token, over the life of the volume.
	Token int64
}

// Blocks reports whether g's entry, which came before later's, keeps that from being
// granted. upgrades are the acquisitions whose entries of the same key later upgrades.
func (g Grant) Blocks(later Grant, upgrades []AcquisitionID) bool {
	return g.Mode.Conflicts(later.Mode) && g.Key.Conflicts(later.Key) &&
		!(g.Key == later.Key && slices.Contains(upgrades, g.AcquisitionID))
}

// FencingToken returns the token of the entry's present owner.
func (e Entry) FencingToken() int64 {
	return cmp.Or(e.Holder.Fencing, FencingToken(e.Token, e.Holder.Turn))
}

// Entry is an acquisition of one key as the service has it.
type Entry struct {
	Key    Key
	Mode   Mode
	Holder Holder
	Token  int64
	Held   bool // else it waits

	// Range is set of an advisory lock, whose Key is that of its file's inode.
	Range *Range
}

// Range is what a flock or fcntl lock covers.
type Range struct {
	Kind       advisory.Kind
	Start, End uint64 // the first and the last byte; advisory.EOF: however long the file gets
}

// Grant returns the grant that the entry stands for, or waits for.
func (e Entry) Grant() Grant {
	return Grant{Key: e.Key, Mode: e.Mode, AcquisitionID: e.Holder.AcquisitionID, Token: e.Token}
}

// LeftoverError is the error of an Acquire whose entries still stand, or may, and are in the
// way of others.
type LeftoverError struct {
	Err  error
	Gone <-chan struct{} // closed when none stands any more
}

func (e *LeftoverError) Error() string { return e.Err.Error() }
func (e *LeftoverError) Unwrap() error { return e.Err }

// ContendedError is ErrContended with the holder that stands in the way, as
// far as it is known.
type ContendedError struct {
	Key    Key
	Holder Holder
	Err    error // why the wait ended; nil when there was none
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
