package kubelease

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// Service says which API server and which of its namespaces this is, by the UID of
// a Lease that the first mount creates. No client can choose a UID: Leases that are
// copied to another cluster get others.
//
// It tries until ctx ends. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) Service(ctx context.Context) (lockmgr.Service, error) {
	var uid string
	var r retry.Retrier
	err := r.Do(ctx, func() error {
		o, err := b.change(ctx, b.names.service(), true, func(o *object) (*coordinationv1.Lease, error) {
			if o != nil {
				return nil, nil
			}
			return b.names.newLease(b.names.service(), kindService), nil
		})
		if err == nil {
			uid = string(o.lease.UID)
		}
		return err
	})
	var id uuid.UUID
	if err == nil {
		id, err = uuid.Parse(uid)
	}
	if err != nil {
		return lockmgr.Service{}, fmt.Errorf("the id of the Leases' namespace: %w", err)
	}
	return lockmgr.Service{Kind: lockmgr.KindKubernetes, ID: id, At: b.space}, nil
}

// FindService is Service without a write: the ID is uuid.Nil if no mount of the volume has
// asked yet. Errors: ErrUnavailable, wrapping ctx's.
func (b *Backend) FindService(ctx context.Context) (lockmgr.Service, error) {
	s := lockmgr.Service{Kind: lockmgr.KindKubernetes, At: b.space}
	o, err := b.get(ctx, b.names.service())
	if err == nil && o != nil {
		s.ID, err = uuid.Parse(string(o.lease.UID))
	}
	if err != nil {
		return lockmgr.Service{}, fmt.Errorf("the id of the Leases' namespace: %w", err)
	}
	return s, nil
}
