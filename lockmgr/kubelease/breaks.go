package kubelease

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// PutBreak is lockmgr.Breaker's: one Lease, which the janitor deletes after a
// day. It tries until ctx ends.
func (b *Backend) PutBreak(ctx context.Context, br lockmgr.Break) error {
	text, err := json.Marshal(br)
	if err != nil {
		return fmt.Errorf("kubelease: break: %w", err)
	}
	name := b.names.breakName(br.ID.String())
	var r retry.Retrier
	err = r.Do(ctx, func() error {
		_, err := b.change(ctx, name, true, func(o *object) (*coordinationv1.Lease, error) {
			if o != nil {
				return nil, nil // by an earlier attempt
			}
			lease := b.names.newLease(name, kindBreak)
			lease.Annotations[noteBreak] = string(text)
			return lease, nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("recording a break: %w", err)
	}
	return nil
}

// DropBreak is lockmgr.Breaker's. It leaves a Lease without the break: a PutBreak that was not answered
// may still be carried out, and finds then that its Lease is there. It tries until ctx ends.
func (b *Backend) DropBreak(ctx context.Context, id uuid.UUID) error {
	name := b.names.breakName(id.String())
	var r retry.Retrier
	err := r.Do(ctx, func() error {
		_, err := b.change(ctx, name, true, func(o *object) (*coordinationv1.Lease, error) {
			switch {
			case o == nil:
				return b.names.newLease(name, kindBreak), nil
			case o.withdrawn():
				return nil, nil
			}
			lease := o.lease.DeepCopy()
			delete(lease.Annotations, noteBreak)
			return lease, nil
		})
		return err
	})
	if err != nil {
		return fmt.Errorf("withdrawing a break: %w", err)
	}
	return nil
}

// withdrawn reports whether the Lease of a break has none.
func (o *object) withdrawn() bool { return o.lease.Annotations[noteBreak] == "" }

// WatchBreaks is lockmgr.Breaker's: it listens to the one watch.
func (b *Backend) WatchBreaks(ctx context.Context, found func(lockmgr.Break)) {
	if err := b.mirrored(ctx); err != nil {
		return
	}
	m := b.mirror
	e := m.listen(aBreak)
	defer m.unlisten(e)
	told := make(map[string]bool)
	for {
		stand := make(map[string]bool)
		for _, o := range m.of(kindBreak) {
			if o.withdrawn() {
				continue
			}
			if stand[o.name] = true; told[o.name] {
				continue
			}
			br, err := lockmgr.ParseBreak(strings.TrimPrefix(o.name, b.names.breakName("")), []byte(o.lease.Annotations[noteBreak]))
			if err != nil {
				b.log.Warn("break that cannot be read", "lease", o.name, "error", err)
				continue
			}
			found(br)
		}
		told = stand
		select {
		case <-e.ch:
		case <-ctx.Done():
			return
		}
	}
}
