package kubelease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// Session is two Leases. One is there for as long as the session lives, for all mounts to
// see. The other, its pulse, is renewed. Keepers that have seen no renewal for its duration
// delete both, the pulse first.
type Session struct {
	b    *Backend
	id   string
	name string
	ttl  time.Duration
	born int64 // the revision at which the Lease was created, or found

	claims claims

	renewing chan struct{} // holds a token while the pulse is written
	pulse    *object       // GUARDED_BY(renewing); as it was written last

	life *lifetime.Life

	adopting sync.Mutex
	adopted  string // GUARDED_BY(adopting); the record of a session that was another process's, until it is put
}

var _ lockmgr.Session = (*Session)(nil)

// OpenSession creates the Leases of a session of ttl, in whole seconds and never
// less: the pulse first, for a session without one has ended. The caller counts its
// deadline from before the call. Errors: ErrUnavailable,
// wrapping ctx's if that ended the call; ErrVolumeChanged.
func (b *Backend) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	text, err := json.Marshal(info)
	if err != nil {
		return nil, fmt.Errorf("kubelease: session record: %w", err)
	}
	if err := b.mirrored(ctx); err != nil {
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	_, era := b.mirror.newest()
	s := &Session{b: b, id: uuid.NewString(), ttl: ttl, renewing: make(chan struct{}, 1)}
	s.name = b.names.session(s.id)
	seconds, now := int32((ttl+time.Second-1)/time.Second), metav1.NowMicro()
	lease := func(name, kind string) *coordinationv1.Lease {
		l := b.names.newLease(name, kind)
		l.Labels[labelSession] = s.id
		l.Spec = coordinationv1.LeaseSpec{HolderIdentity: &info.Node, LeaseDurationSeconds: &seconds, AcquireTime: &now}
		return l
	}
	record := lease(s.name, kindSession)
	record.Annotations[noteInfo] = string(text)
	var created *object
	s.pulse, err = b.write(ctx, b.urgent(), nil, lease(b.names.pulse(s.id), kindPulse))
	if err == nil {
		created, err = b.write(ctx, b.urgent(), nil, record)
	}
	if err == nil {
		err = b.volumeStands(ctx)
	}
	if errors.Is(err, errMoved) { // the ids are new: the request was sent twice on its way
		err = fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, err)
	}
	if err != nil {
		// One try is enough: the session has no locks, and expires.
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.timeout)
		defer cancel()
		if rerr := b.Revoke(cleanup, s.id); rerr != nil {
			b.log.Debug("leases of a failed session left to expire", "session", s.id, "error", rerr)
		}
		return nil, fmt.Errorf("opening a session: %w", err)
	}
	s.born = created.rev
	s.begin(era)
	return s, nil
}

// begin begins the session's background work.
func (s *Session) begin(era lifetime.Era) {
	b := s.b
	s.life = lifetime.Begin(era, s.id, b.log)
	b.present.add(s)
	s.life.Go(s.watchLease)
	s.life.Go(s.removeOrphans)
	b.sweep.Do(func() { b.running.Go(b.janitor) })
}

// ID names the session's Lease, and labels those of its locks.
func (s *Session) ID() string { return s.id }

// TTL is the one asked for. The Lease says as much, or up to a second more.
func (s *Session) TTL() time.Duration { return s.ttl }

// Done is closed when the Lease is seen to be gone, and by Close.
func (s *Session) Done() <-chan struct{} { return s.life.Over.Done() }

// Renew replaces the pulse by one with a later renewTime. A keeper's request to delete the
// pulse came before, and the renewal fails, or it fails itself. Errors: ErrSessionLost;
// ErrUnavailable, wrapping ctx's if that ended the call.
func (s *Session) Renew(ctx context.Context) error {
	select {
	case s.renewing <- struct{}{}:
		defer func() { <-s.renewing }()
	case <-ctx.Done():
		return retry.Ended(ctx)
	}
	if s.life.Ended() {
		return lockmgr.ErrSessionLost
	}
	for {
		newest, era := s.b.mirror.newest()
		written, err := s.b.send(ctx, s.b.urgent(), s.pulse, s.pulse.renewed())
		if err == nil && s.b.saw(written.rev, newest, era) != era {
			return lockmgr.ErrSessionLost
		}
		if err == nil {
			s.pulse = written
			s.b.beat(written)
			return s.stands(ctx)
		}
		if !errors.Is(err, errMoved) {
			return err
		}
		// By an earlier attempt of ours that was not answered, or it is gone.
		now, err := s.b.getUrgent(ctx, s.pulse.name)
		switch {
		case err != nil:
			return err
		case now == nil || now.lease.UID != s.pulse.lease.UID:
			return s.lost()
		case now.rev < s.pulse.rev: // restored, with revisions that count on from later
			s.b.setBack(s.pulse.rev, now.rev, era)
			return lockmgr.ErrSessionLost
		}
		s.pulse = now
	}
}

// stands makes sure, while no watch would tell, that the session was not deleted
// without its pulse.
func (s *Session) stands(ctx context.Context) error {
	if s.b.mirror.connected() {
		return nil
	}
	o, err := s.b.getUrgent(ctx, s.name)
	if err == nil && o == nil {
		return s.lost()
	}
	return err
}

// Undisturbed is lockmgr.Session's, by the mirror: each change of the Lease of the directories
// gives it a new revision.
func (s *Session) Undisturbed(_ lockmgr.Key, from, to int64) bool {
	m := s.b.mirror
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.objects[s.b.names.tree()]
	return (o == nil || lockmgr.FencingToken(o.rev, 0) < from) && from <= to && to < lockmgr.FencingToken(m.asOf+1, 0)
}

// Close deletes the Leases, trying until ctx ends, and waits for the session's goroutines.
// Its locks are free from then on: entries of a session that is gone count for nothing.
// Errors: ErrUnavailable, wrapping ctx's, when the Leases are left to expire.
func (s *Session) Close(ctx context.Context) error {
	return s.life.Close(ctx, func(ctx context.Context) error { return s.b.Revoke(ctx, s.id) })
}

// watchLease ends the session when its Lease is seen to be gone.
func (s *Session) watchLease() {
	m := s.b.mirror
	e := m.listen(s.name)
	defer m.unlisten(e)
	for {
		m.mu.Lock()
		gone := m.ended(s.id, s.born)
		m.mu.Unlock()
		if gone {
			s.life.Lost()
			return
		}
		select {
		case <-e.ch:
		case <-s.life.Over.Done():
			return
		}
	}
}

func (s *Session) lost() error {
	s.b.mirror.bury(s.name)
	s.life.End()
	return lockmgr.ErrSessionLost
}

// Sessions returns the records of the sessions that live, by their ids.
// Errors: ErrUnavailable, wrapping ctx's if that ended the call.
func (b *Backend) Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error) {
	st, err := b.snapshot(ctx, b.client.locks)
	if err != nil {
		return nil, fmt.Errorf("listing sessions: %w", err)
	}
	return st.sessions()
}

func (s *state) sessions() (map[string]lockmgr.SessionInfo, error) {
	found := make(map[string]lockmgr.SessionInfo)
	for o := range maps.Values(s.objects) {
		if o.kind != kindSession {
			continue
		}
		info, err := lockmgr.ParseSessionInfo(o.name, []byte(o.lease.Annotations[noteInfo]))
		if err != nil {
			return nil, err
		}
		found[o.sessionID()] = info
	}
	return found, nil
}

// Revoke is lockmgr.Breaker's. The pulse goes first: while it is there, the session
// may be renewed, and its mount believe that it lives.
func (b *Backend) Revoke(ctx context.Context, id string) error {
	if _, err := uuid.Parse(id); err != nil {
		return nil // there is no such session
	}
	_, err := b.remove(ctx, b.urgent(), b.names.pulse(id), nil)
	if err == nil {
		err = b.endSession(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("revoke session %s: %w", id, err)
	}
	return nil
}

// SessionTTL is lockmgr.Breaker's.
func (b *Backend) SessionTTL(ctx context.Context, id string) (time.Duration, error) {
	if _, err := uuid.Parse(id); err != nil {
		return 0, fmt.Errorf("%w: %q is not the id of a session", lockmgr.ErrSessionLost, id)
	}
	o, err := b.get(ctx, b.names.session(id))
	if err != nil {
		return 0, err
	}
	if o == nil {
		return 0, fmt.Errorf("%w: session %s", lockmgr.ErrSessionLost, id)
	}
	return o.duration(), nil
}
