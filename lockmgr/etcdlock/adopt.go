package etcdlock

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

var (
	_ lockmgr.Adopter  = (*Backend)(nil)
	_ lockmgr.HandedOn = (*Session)(nil)
)

// Freeze implements lockmgr.Adopter. A request that was given up without an answer may still be
// carried out: RemoveUnclaimed voids it.
func (b *Backend) Freeze(ctx context.Context) (thaw func(), err error) { return b.outgoing.Freeze(ctx) }

// enter begins a request that can change something.
func (b *Backend) enter(ctx context.Context) error {
	if err := b.outgoing.Enter(ctx); err != nil {
		return fmt.Errorf("%w: %w: %w", lockmgr.ErrUnavailable, errUnsent, err)
	}
	return nil
}

// Record implements lockmgr.Adopter. No record is needed: the raised fence voids what was sent.
func (b *Backend) Record(*journal.Part) {}

// Recover implements lockmgr.Adopter.
func (b *Backend) Recover(*journal.Records) error { return nil }

// Connect implements lockmgr.Adopter.
func (b *Backend) Connect(ctx context.Context) error {
	_, err := b.forRenewals(ctx)
	return err
}

// AdoptSession implements lockmgr.Adopter. The sessions of a Backend are all of one mount, and all
// adopted before another one is opened.
func (b *Backend) AdoptSession(ctx context.Context, info lockmgr.SessionInfo, id string, ttl time.Duration, claims []lockmgr.Grant) (lockmgr.Session, error) {
	lease, err := leaseOf(id)
	if err != nil {
		return nil, err
	}
	value, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("etcdlock: session record: %w", err)
	}
	if leases := lease &^ (1<<32 - 1); b.leases != leases { // else a session's watch may read it by now
		b.leases = leases
	}
	era, stamps := b.era()
	renew, err := b.forRenewals(ctx)
	if err != nil {
		return nil, fmt.Errorf("adopting a session: %w", err)
	}
	s := &Session{b: b, renew: renew, lease: lease, ttl: ttl, record: b.keys.session(id), era: era, stamps: stamps}
	var resp *clientv3.TxnResponse
	var r retry.Retrier
	if err := r.Do(ctx, func() error { resp, err = b.txn(ctx, nil, []clientv3.Op{clientv3.OpGet(s.record)}, nil); return err }); err != nil {
		return nil, fmt.Errorf("adopting a session: %w", err)
	}
	record := resp.Responses[0].GetResponseRange().Kvs
	if len(record) == 0 || clientv3.LeaseID(record[0].Lease) != lease {
		return nil, fmt.Errorf("%w: its record is gone", lockmgr.ErrSessionLost)
	}
	s.fence = newFence(s, string(value), record[0].CreateRevision, record[0].ModRevision)
	s.group = newGroup(b, s.fence)
	stamps.begin(resp.Header.Revision)
	for _, g := range claims {
		s.claims.add(b.keys.granted(g))
	}
	s.begin()
	return s, nil
}

// begin begins the session's background work.
func (s *Session) begin() {
	s.life = lifetime.Begin(s.era, s.ID(), s.b.log)
	leave := s.b.told.listen(&listener{prefix: s.record, gone: s.life.Lost})
	s.life.Go(func() {
		defer leave()
		s.janitor()
	})
}

// RemoveUnclaimed implements lockmgr.HandedOn. What was found before the fence was raised may
// lack what a late Put brings, so it is looked for afterwards.
func (s *Session) RemoveUnclaimed(ctx context.Context) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	var r retry.Retrier
	return r.Do(ctx, func() error {
		resp, err := s.b.txn(ctx, nil, []clientv3.Op{s.fence.raise()}, nil)
		if err != nil {
			return err
		}
		if err := s.fence.raised(resp.Header.Revision, resp.Responses[0]); err != nil {
			return s.life.Noted(err)
		}
		attached, err := s.attached(ctx)
		if err != nil {
			return err
		}
		return s.removeOrphans(ctx, slices.DeleteFunc(attached, s.claims.has), slog.LevelInfo)
	})
}

// Disclaim implements lockmgr.HandedOn.
func (s *Session) Disclaim(keys []lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) {
	for _, k := range keys {
		s.claims.drop(s.b.keys.entry(k, mode, id))
	}
}

// Abandon implements lockmgr.HandedOn.
func (s *Session) Abandon() {
	s.life.End()
	s.group.close()
	s.life.Wait()
}

// answersWithin is how long standsInLine waits for the answer to a Txn, in less than a handover may take.
const answersWithin = time.Second

// standsInLine reports whether the entries stand for certain, so that a request that is handed on
// keeps its place by them. One that was handed on a moment ago may have heard nothing of them yet:
// they stand as they did.
func (a *acquisition) standsInLine() bool {
	stands := a.known.token != 0 || a.req.Again && a.known.rev == 0
	if a.last != nil {
		select {
		case <-a.last.done:
			stands = stands || a.last.err == nil && a.last.put()
			a.noteAnswer()
		case <-time.After(answersWithin):
			return false
		}
	}
	return stands && a.unanswered == 0 && !a.s.life.Ended()
}
