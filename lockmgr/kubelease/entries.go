package kubelease

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/lockfs/lockfs/lockmgr"
)

// snapshot reads all Leases of the volume as they are now.
func (b *Backend) snapshot(ctx context.Context) (*state, error) {
	all, err := b.locks.list(ctx, 0)
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
			b.log.Error("a lock cannot be read: nobody gets it", "err", o.broken)
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
	st, err := b.snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing locks: %w", err)
	}
	return st.list(prefix), nil
}

// list returns what is held or waited for at prefix and below it, and the
// directories above.
func (s *state) list(prefix string) []lockmgr.Entry {
	var entries []lockmgr.Entry
	for o := range maps.Values(s.objects) {
		for i := range o.entries {
			if e := &o.entries[i]; s.lives(e) {
				entries = append(entries, lockmgr.Entry{Key: e.key, Mode: e.mode(), Holder: e.Holder, Token: e.Token, Held: s.holds(o, i)})
			}
		}
	}
	return lockmgr.Listing(entries, prefix)
}

// holds reports whether the entry at i of o is granted, as far as it can be
// told from outside: of a file and a directory, the one that was put first is.
func (s *state) holds(o *object, i int) bool {
	e := &o.entries[i]
	return len(s.inLine(o, i, e)) == 0 &&
		!slices.ContainsFunc(s.across(e), func(x obstacle) bool { return x.entry.Token < e.Token })
}
