package kubelease

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// snapshot reads all Leases of the volume as they are now.
func (b *Backend) snapshot(ctx context.Context) (*state, error) {
	list, rev, err := b.list(ctx)
	if err != nil {
		return nil, err
	}
	st := &state{names: b.names, objects: make(map[string]*object, len(list)), asOf: rev}
	now := b.mirror.clock.Now()
	for i := range list {
		o, err := read(&list[i], now)
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
	var names, inodes []lockmgr.Entry
	listed := make(map[uuid.UUID]bool)
	root := lockmgr.Key{Kind: lockmgr.Tree, Path: prefix}
	for o := range maps.Values(s.objects) {
		for i := range o.entries {
			e := &o.entries[i]
			if !s.lives(e) {
				continue
			}
			le := lockmgr.Entry{Key: e.key, Mode: e.mode(), Holder: e.Holder, Token: e.Token, Held: s.holds(o, i)}
			switch {
			case e.key.Kind == lockmgr.Inode:
				inodes = append(inodes, le)
			case prefix == "" || root.Conflicts(e.key):
				names = append(names, le)
				listed[e.Owner] = true
			}
		}
	}
	if prefix != "" {
		inodes = slices.DeleteFunc(inodes, func(e lockmgr.Entry) bool { return !listed[e.Holder.Owner] })
	}
	for _, list := range [][]lockmgr.Entry{names, inodes} {
		slices.SortStableFunc(list, func(x, y lockmgr.Entry) int {
			return cmp.Or(cmp.Compare(x.Key.Path, y.Key.Path), cmp.Compare(x.Token, y.Token), cmp.Compare(x.Key.Kind, y.Key.Kind))
		})
	}
	return append(names, inodes...)
}

// holds reports whether the entry at i of o is granted, as far as it can be
// told from outside: of a file and a directory, the one that was put first is.
func (s *state) holds(o *object, i int) bool {
	e := &o.entries[i]
	return len(s.inLine(o, i, e)) == 0 &&
		!slices.ContainsFunc(s.across(e), func(x obstacle) bool { return x.entry.Token < e.Token })
}
