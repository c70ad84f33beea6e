package kubelease

import (
	"context"
	"fmt"
	"maps"
	"slices"

	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/lockfs/lockfs/lockmgr"
)

// snapshot reads all Leases of the volume as they are now.
func (b *Backend) snapshot(ctx context.Context, from coordinationclient.CoordinationV1Interface) (*state, error) {
	return b.snapshotOf(ctx, from, b.locks.selector)
}

// snapshotOf is snapshot of the Leases that are selected.
func (b *Backend) snapshotOf(ctx context.Context, from coordinationclient.CoordinationV1Interface, selector string) (*state, error) {
	f := *b.locks
	f.from, f.selector = from, selector
	all, err := f.list(ctx, 0)
	if err != nil {
		return nil, err
	}
	st := &state{names: b.names, objects: make(map[string]*object, len(all.leases)), asOf: all.rev}
	now := b.mirror.clock.Now()
	for i := range all.leases {
		o, err := read(&all.leases[i], now)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
		}
		if o.broken != nil {
			b.log.Error("the Lease of a lock cannot be read: nobody is granted the lock", "error", o.broken)
		}
		st.objects[o.name] = o
	}
	return st, nil
}

// Entries is lockmgr.Backend's: one reading of all Leases. Errors:
// ErrInvalidKey, ErrUnavailable, wrapping ctx's if that ended the call.
func (b *Backend) Entries(ctx context.Context, prefix string) ([]lockmgr.Entry, error) {
	if prefix != "" {
		if _, err := lockmgr.FileKey(prefix); err != nil {
			return nil, err
		}
	}
	st, err := b.snapshot(ctx, b.client.locks)
	if err != nil {
		return nil, fmt.Errorf("listing locks: %w", err)
	}
	return st.list(prefix), nil
}

// peeksPerSecond is how often Rivals asks the API server. Programs that read in a loop who has
// a file must leave requests for the locks.
const peeksPerSecond = 5

// Rivals is lockmgr.Backend's. It reads the key's own Lease, a few times a second at most.
// More often, and for directories, it answers from the mirror. While the watch is down, a
// caller waits for its turn to read. Errors: ErrUnavailable, wrapping ctx's if that ended
// the call.
func (b *Backend) Rivals(ctx context.Context, k lockmgr.Key) ([]lockmgr.Entry, error) {
	if err := b.mirrored(ctx); err != nil {
		return nil, err
	}
	gone := false
	peek := k.Kind != lockmgr.Tree && b.peeks.TryAccept()
	if k.Kind != lockmgr.Tree && !peek && !b.mirror.connected() {
		if err := b.peeks.Wait(ctx); err != nil {
			return nil, fmt.Errorf("%w: reading who has %s: %w", lockmgr.ErrUnavailable, k, err)
		}
		peek = true
	}
	if peek {
		o, err := b.get(ctx, b.names.lock(k))
		if err != nil {
			return nil, fmt.Errorf("reading who has %s: %w", k, err)
		}
		gone = o == nil
	}
	b.mirror.mu.Lock()
	defer b.mirror.mu.Unlock()
	var entries []lockmgr.Entry
	for _, o := range b.mirror.around(k) {
		if !gone || o.kind == kindTree {
			entries = append(entries, b.mirror.entriesOf(o)...)
		}
	}
	return lockmgr.Rivals(entries, k), nil
}

// around returns the Leases that may have entries which conflict with k.
func (s *state) around(k lockmgr.Key) (found []*object) {
	if k.Kind == lockmgr.Tree {
		for _, o := range s.objects {
			if o.kind == kindFile || o.kind == kindTree {
				found = append(found, o)
			}
		}
		return found
	}
	names := []string{s.names.lock(k)}
	if k.Kind == lockmgr.File {
		names = append(names, s.names.tree())
	}
	for _, name := range names {
		if o := s.objects[name]; o != nil {
			found = append(found, o)
		}
	}
	return found
}

// list returns the entries at prefix and below it, and those of the directories above.
func (s *state) list(prefix string) []lockmgr.Entry {
	var entries []lockmgr.Entry
	for o := range maps.Values(s.objects) {
		entries = append(entries, s.entriesOf(o)...)
	}
	return lockmgr.Listing(entries, prefix)
}

func (s *state) entriesOf(o *object) (entries []lockmgr.Entry) {
	for i := range o.entries {
		if e := &o.entries[i]; s.lives(e) {
			entries = append(entries, lockmgr.Entry{Key: e.key, Mode: e.mode(), Holder: e.Holder, Token: e.Token, Held: s.holds(o, i)})
		}
	}
	return entries
}

// holds reports whether the entry at i of o is granted, as far as another mount can tell. Of the
// entries of a file and of a directory above it, the one that was put first counts as granted.
func (s *state) holds(o *object, i int) bool {
	e := &o.entries[i]
	return len(s.inLine(o, i, e)) == 0 &&
		!slices.ContainsFunc(s.across(e), func(x obstacle) bool { return x.entry.Token < e.Token })
}
