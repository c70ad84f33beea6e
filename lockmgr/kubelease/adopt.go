package kubelease

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

var (
	_ lockmgr.Adopter  = (*Backend)(nil)
	_ lockmgr.HandedOn = (*Session)(nil)
)

// Freeze implements lockmgr.Adopter. Renewals of pulses go on. When it returns, every write without
// an answer is void: the next process would not know of these writes.
func (b *Backend) Freeze(ctx context.Context) (thaw func(), err error) {
	thaw, err = b.outgoing.Freeze(ctx)
	if err != nil {
		return nil, err
	}
	if err := b.void(ctx, b.unanswered.those(func(*sentWrite) bool { return true })); err != nil {
		thaw()
		return nil, fmt.Errorf("a request to the API server was not answered: %w", err)
	}
	return thaw, nil
}

// Record implements lockmgr.Adopter: each write of a lock's Lease is recorded before it is sent,
// until it is answered. Nothing else that a dead process has sent can do harm. Renewals and
// requests that end a session are conditional on a version too, and lost sessions are not adopted.
func (b *Backend) Record(part *journal.Part) { b.unanswered.recordIn(part) }

// Recover implements lockmgr.Adopter. RemoveUnclaimed makes void what it takes over, and AdvisoryRows
// before a table is read.
func (b *Backend) Recover(r *journal.Records) error { return b.unanswered.recover(r) }

// Connect implements lockmgr.Adopter.
func (b *Backend) Connect(ctx context.Context) error { return b.mirrored(ctx) }

// AdoptSession implements lockmgr.Adopter.
func (b *Backend) AdoptSession(ctx context.Context, info lockmgr.SessionInfo, id string, ttl time.Duration, claims []lockmgr.Grant) (lockmgr.Session, error) {
	if _, err := uuid.Parse(id); err != nil {
		return nil, fmt.Errorf("%w: %q is not the id of a session", lockmgr.ErrSessionLost, id)
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("kubelease: session record: %w", err)
	}
	s := &Session{b: b, id: id, name: b.names.session(id), ttl: ttl, renewing: make(chan struct{}, 1), adopted: string(text)}
	var record *object
	var now reading
	var r retry.Retrier
	err = r.Do(ctx, func() (err error) {
		if err = b.mirrored(ctx); err == nil {
			now, err = b.locks.list(ctx, 1)
		}
		if err == nil {
			record, err = b.getUrgent(ctx, s.name)
		}
		if err == nil {
			s.pulse, err = b.getUrgent(ctx, b.names.pulse(id))
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("adopting a session: %w", err)
	}
	if record == nil || s.pulse == nil {
		return nil, fmt.Errorf("%w: its Lease is gone", lockmgr.ErrSessionLost)
	}
	for _, g := range claims {
		if g.Token > now.rev {
			return nil, fmt.Errorf("%w: the API server's etcd was set back", lockmgr.ErrSessionLost)
		}
		s.claims.add(claimOf(g))
	}
	s.born = record.rev
	s.begin(now.era)
	return s, nil
}

// RemoveUnclaimed implements lockmgr.HandedOn. A former process that is alive has had answers to
// all its writes, or has made them void: see Freeze. The writes of a former process that has died
// are made void first. After that no entry can appear that nobody claims.
func (s *Session) RemoveUnclaimed(ctx context.Context) error {
	ctx, leave, err := s.life.Enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	listed := false
	var r retry.Retrier
	return r.Do(ctx, func() error {
		s.adopting.Lock()
		defer s.adopting.Unlock()
		if s.adopted != "" && !listed { // the watch may not have shown the former process's last writes yet
			all, err := s.b.locks.list(ctx, 0)
			if err == nil {
				err = s.b.mirror.replace(all)
			}
			if err != nil {
				return err
			}
			listed = true
		}
		late := s.b.voidFormer(ctx, func(*sentWrite) bool { return true })
		if late != nil && !errors.Is(late, retry.ErrRefused) {
			return late
		}
		err := each(ctx, s.orphaned(), func(name string) error { return s.removeFrom(ctx, s.b.urgent(), name, slog.LevelInfo) })
		if err == nil && s.adopted != "" {
			if err = s.describe(ctx, s.adopted); err == nil {
				s.adopted = ""
			}
		}
		return cmp.Or(err, late) // a Lease that cannot be read does not keep the others from being cleaned
	})
}

// describe has the session's Lease tell of this process.
func (s *Session) describe(ctx context.Context, info string) error {
	for {
		o, err := s.b.getUrgent(ctx, s.name)
		if err != nil {
			return err
		}
		if o == nil {
			return s.lost()
		}
		lease := o.lease.DeepCopy()
		lease.Annotations[noteInfo] = info
		if _, err = s.b.write(ctx, s.b.urgent(), o, lease); !errors.Is(err, errMoved) {
			return err
		}
	}
}

// Disclaim implements lockmgr.HandedOn.
func (s *Session) Disclaim(keys []lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID) {
	for _, k := range keys {
		s.claims.drop(claim{Key: k, Mode: mode, AcquisitionID: id})
	}
}

// Abandon implements lockmgr.HandedOn.
func (s *Session) Abandon() {
	s.life.End()
	s.life.Wait()
}

// standsInLine reports whether our entry certainly stands, and was put in time, so that a request
// that is handed on keeps its place by it.
func (a *acquisition) standsInLine() bool {
	p := a.places[0]
	if a.req.Again && !a.resumed {
		return !a.s.life.Ended() // it was handed on a moment ago, and stands as it did
	}
	return len(a.places) == 1 && p.token != 0 && p.inTime && !p.unsure && !a.s.life.Ended()
}

// resume finds the entry by which a request has waited before it was handed on. It was in time then.
func (a *acquisition) resume(ctx context.Context) error {
	p, g := a.places[0], a.req.Grant(a.req.Keys[0], 0)
	o := a.s.b.mirror.at(p.name)
	if o.find(g) < 0 {
		var err error
		if o, err = a.s.b.get(ctx, p.name); err != nil {
			return err
		}
	}
	if i := o.find(g); i >= 0 {
		p.token, p.inTime = o.entries[i].Token, true
	}
	a.resumed = true
	return nil
}
