package kubelease

import (
	"context"
	"errors"
	"maps"
	"sync"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// unanswered are the last writes of locks' Leases that were not answered: they may yet be carried
// out, on condition of a revision. Whoever wants to know reads the Lease. Before the locks are
// handed on they must be void: the next process does not know of them.
type unanswered struct {
	mu     sync.Mutex
	writes map[string]unansweredWrite // GUARDED_BY(mu); by the name of the Lease
}

type unansweredWrite struct {
	base  int64 // the revision that it replaces; 0: it creates
	lease *coordinationv1.Lease
}

// note notes how a write has ended.
func (u *unanswered) note(base int64, lease *coordinationv1.Lease, err error) {
	switch lease.Labels[labelKind] {
	case kindFile, kindInode, kindTree, kindTable:
	default:
		return // nothing depends on when others are written
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	before, had := u.writes[lease.Name]
	switch {
	case had && before.base > base:
	case err == nil, errors.Is(err, errMoved):
		delete(u.writes, lease.Name)
	case errors.Is(err, lockmgr.ErrUnavailable) && !errors.Is(err, retry.ErrRefused):
		if u.writes == nil {
			u.writes = make(map[string]unansweredWrite)
		}
		u.writes[lease.Name] = unansweredWrite{base, lease}
	}
}

func (u *unanswered) all() map[string]unansweredWrite {
	u.mu.Lock()
	defer u.mu.Unlock()
	return maps.Clone(u.writes)
}

// void makes void what was not answered, while nothing is sent: it writes the Lease in place of a
// write that may yet come.
func (b *Backend) voidUnanswered(ctx context.Context) error {
	for name, w := range b.unanswered.all() {
		if err := b.void(ctx, name, w); err != nil && !errors.Is(err, errMoved) {
			return err
		}
	}
	return nil
}

// void makes void one write that was not answered. Errors: errMoved, which says that it is void.
func (b *Backend) void(ctx context.Context, name string, w unansweredWrite) error {
	o := b.mirror.at(name)
	if o.revision() <= w.base {
		var err error
		if o, err = b.get(ctx, name); err != nil {
			return err
		}
	}
	lease := w.lease
	var err error
	if o.revision() <= w.base && (o != nil || w.base == 0) { // else it was carried out, or never will be
		if lease, err = b.names.fence(o, w.lease); err == nil {
			_, err = b.send(ctx, b.leases(), o, lease)
		}
		if err != nil && !errors.Is(err, errMoved) {
			return err
		}
	}
	b.unanswered.note(w.base, lease, nil)
	return err
}

// fence returns the Lease that o, or nil if there is none, becomes without any change. like is of
// the same key.
func (l layout) fence(o *object, like *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	k := lockmgr.Key{Kind: lockmgr.Tree}
	var entries []entry
	var rows []row
	var err error
	if kind := like.Labels[labelKind]; kind != kindTree {
		k, err = keyOf(kind, like.Annotations[noteKey])
	}
	if err == nil {
		err = l.fits(o, k)
	}
	if err != nil {
		return nil, err
	}
	if o != nil {
		entries, rows = o.entries, o.rows
	}
	if like.Labels[labelKind] == kindTable {
		return l.tableLease(o, k, rows, uuid.NewString())
	}
	lease, err := l.lockLease(o, k, entries, false)
	if err == nil {
		lease.Annotations[noteFence] = uuid.NewString()
	}
	return lease, err
}
