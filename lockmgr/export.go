package lockmgr

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/renew"
)

// HandedOn is a Session that can be handed on to another process.
type HandedOn interface {
	// RemoveUnclaimed deletes the session's entries that no acquisition and no grant claims, and
	// makes the unanswered requests of the former process void. It tries until ctx ends. Errors:
	// ErrUnavailable, ErrSessionLost.
	RemoveUnclaimed(ctx context.Context) error

	// Disclaim makes the entries of an acquisition unclaimed.
	Disclaim(keys []Key, mode Mode, id AcquisitionID)

	// Abandon ends the use of the session by this process. Another process goes on with it.
	Abandon()
}

// Adopter is a Backend whose sessions can be handed on to another process: each is a HandedOn.
type Adopter interface {
	// Record begins to record this process's requests in part. If this process dies before it could
	// Freeze, the next process reads them. nil: nothing is recorded.
	Record(part *journal.Part)

	// Recover takes over the records of a process that has died, and records them as its own. It is
	// called before AdoptSession. After RemoveUnclaimed, no request of the dead process has an effect
	// any more. Errors: the records are of another format.
	Recover(records *journal.Records) error

	// Connect prepares for AdoptSession, while the other process still has the sessions. Errors:
	// ErrUnavailable.
	Connect(ctx context.Context) error

	// Freeze waits until no request of this process can change anything in the service, except
	// renewals. New requests wait until thaw. Errors: ctx's.
	Freeze(ctx context.Context) (thaw func(), err error)

	// AdoptSession continues a session of another process of this machine. The session claims the
	// entries of claims; a claim without a token is of a request that waits. Nothing is changed in
	// the service before RemoveUnclaimed or an Acquire. Errors: ErrUnavailable, ErrSessionLost.
	AdoptSession(ctx context.Context, info SessionInfo, id string, ttl time.Duration, claims []Grant) (Session, error)
}

// State is what a Manager hands on to the next process of its mount. A change of State changes
// handover.Format.
type State struct {
	Sessions []SessionState
	Locks    []LockState
	Holds    []HoldState // in the order of Export's
	Left     []LeftState
	Advisory *AdvisoryState // nil: there are none

	// Died: the former process has died, and the rest is what its records say.
	Died        bool
	Delegations []DelegationState // only if it has died: else they are given back before
}

// DelegationState is a delegated directory.
type DelegationState struct {
	Grant   Grant
	Holder  Holder
	Session int
	Keep    time.Duration
}

// SessionState is one session.
type SessionState struct {
	ID  string
	TTL time.Duration
}

// LockState is one lock with an entry in the service. Numbers are indexes in State.
type LockState struct {
	Grant     Grant
	Since     time.Time
	Holder    Holder
	Owner     Owner
	Session   int
	Contended bool
	Keep      time.Duration
	Keepable  bool
	Asked     time.Time
	Recalled  bool
	Turn      int
	Fencing   int64
	Described Holder
	Unsettled bool
	Changes   bool
	Looked    bool
	Told      bool
	Below     int // 1 + the number of the delegation that covers it; 0: it has an entry
}

// HoldState is one hold.
type HoldState struct {
	Owner    Owner
	Unlocked bool
	Locks    []int  // of a lost hold: those that are still to be given back
	Sessions []int  // those it relies on
	Lost     string // why it is lost; "": it is not
	Session  bool   // it is lost with a session
	Closing  bool
}

// LeftState is the entry of a request that was handed on.
type LeftState struct {
	Keys    []Key
	Mode    Mode
	Holder  Holder
	Session int
}

// Export returns the locks of holds, the tables of advisory locks, and the sessions. HandOn and
// Quiet were called, no request is under way, and the Backend is frozen. An error says what cannot be
// handed on.
func (m *Manager) Export(holds []*Hold, tables []*AdvisoryTable) (*State, error) {
	st, sessions, err := m.exportHolds(holds)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	a := m.advisory
	m.mu.Unlock()
	if a != nil {
		st.Advisory, err = a.export(tables, sessions)
	}
	return st, err
}

func (m *Manager) exportHolds(holds []*Hold) (*State, map[*session]int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.backend.(Adopter); !ok {
		return nil, nil, errors.New("the lock service's sessions cannot be handed on")
	}
	if len(m.dels) > 0 {
		return nil, nil, errors.New("a directory is delegated")
	}
	if m.surrendering > 0 {
		return nil, nil, errors.New("a lock was broken, and waits for the last writes under it")
	}
	st := &State{}
	sessions := make(map[*session]int)
	for _, s := range m.sessions {
		if state := s.renewal.State(); state != renew.Held || s.renewal.Troubled() {
			return nil, nil, fmt.Errorf("session %s is %v, or its renewal is late", s.backend.ID(), state)
		}
		sessions[s] = len(st.Sessions)
		st.Sessions = append(st.Sessions, SessionState{s.backend.ID(), s.backend.TTL()})
	}
	locks := make(map[*lock]int)
	for _, h := range holds {
		hs := HoldState{Owner: h.owner, Unlocked: h.unlocked, Closing: h.closing}
		if why := h.why(); why != nil && !h.unlocked {
			hs.Lost, hs.Session = why.Error(), errors.Is(why, ErrSessionLost)
		} else {
			for _, s := range h.relied() {
				i, ok := sessions[s]
				if !ok {
					return nil, nil, fmt.Errorf("session %s is being given up", s.backend.ID())
				}
				hs.Sessions = append(hs.Sessions, i)
			}
		}
		for _, l := range h.locks {
			if hs.Lost != "" && (l.releasing || !l.stands()) {
				continue
			}
			i, ok := locks[l]
			if !ok {
				if l.releasing || l.below != nil || l.putting || l.idle != nil {
					return nil, nil, fmt.Errorf("the lock of %s is being given up, or has no entry", l.grant.Key)
				}
				i = len(st.Locks)
				locks[l] = i
				st.Locks = append(st.Locks, LockState{
					Grant: l.grant, Since: l.since, Holder: l.holder, Owner: l.owner, Session: sessions[l.sess], Contended: l.contended,
					Keep: l.keep, Keepable: l.keepable, Asked: l.asked, Recalled: l.recalled, Turn: l.turn, Fencing: l.fencing, Described: l.described,
					Unsettled: l.unsettled, Changes: l.changes, Looked: l.looked, Told: l.told,
				})
			}
			hs.Locks = append(hs.Locks, i)
		}
		st.Holds = append(st.Holds, hs)
	}
	for _, l := range m.left {
		if i, ok := sessions[l.sess]; ok {
			st.Left = append(st.Left, LeftState{l.keys, l.mode, l.holder, i})
		}
	}
	return st, sessions, nil
}

// LetGo ends the Manager after its state was adopted: its sessions and locks are another
// process's, and nothing is sent to the service.
func (m *Manager) LetGo() {
	m.mu.Lock()
	m.refusing, m.closed = true, true
	sessions := m.sessions
	for _, s := range sessions {
		if !s.tended {
			m.wg.Add(-2)
		}
	}
	m.mu.Unlock()
	m.cancel()
	for _, s := range sessions {
		s.renewal.HandOn()
		s.backend.(HandedOn).Abandon()
	}
	m.wg.Wait()
}

// Adopt returns a Manager with the sessions and locks of another one, and its holds, in their
// order. It has renewed the sessions, and changes nothing in the service before Begin. Errors: the
// state cannot be taken over; nothing is left behind.
func Adopt(ctx context.Context, cfg Config, st *State) (_ *Manager, _ []*Hold, err error) {
	m, err := newManager(cfg)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			m.LetGo()
		}
	}()
	a, ok := m.backend.(Adopter)
	if !ok {
		return nil, nil, errors.New("the lock service's sessions cannot be handed on")
	}
	if err := st.check(); err != nil {
		return nil, nil, err
	}
	claims := make([][]Grant, len(st.Sessions))
	for _, l := range st.Locks {
		if l.Below == 0 {
			claims[l.Session] = append(claims[l.Session], l.Grant)
		}
	}
	for _, d := range st.Delegations {
		claims[d.Session] = append(claims[d.Session], d.Grant)
	}
	for _, l := range st.Left {
		for _, k := range l.Keys {
			claims[l.Session] = append(claims[l.Session], Grant{Key: k, Mode: l.Mode, AcquisitionID: l.Holder.AcquisitionID})
		}
	}
	sessions := make([]*session, len(st.Sessions)) // nil: lost
	for i, s := range st.Sessions {
		sessions[i], err = m.adoptSession(ctx, a, s, claims[i])
		if st.Died && errors.Is(err, ErrSessionLost) {
			m.log.Error("a session of the daemon that died is lost; its locks are void and their files return EIO", slog.String("session", s.ID), slog.Any("error", err))
			continue
		}
		if err != nil {
			return nil, nil, fmt.Errorf("session %s: %w", s.ID, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.handed, m.handedSessions, m.died = st.Advisory, sessions, st.Died
	dels := m.adoptDelegations(st, sessions)
	locks := make([]*lock, len(st.Locks))
	for i, s := range st.Locks {
		if sessions[s.Session] == nil {
			continue
		}
		locks[i] = &lock{
			grant: s.Grant, since: s.Since, holder: s.Holder, owner: s.Owner, sess: sessions[s.Session], holds: make(map[*Hold]struct{}),
			contended: s.Contended, keep: s.Keep, asked: s.Asked, recalled: s.Recalled, turn: s.Turn, fencing: s.Fencing,
			unsettled: s.Unsettled, changes: s.Changes, looked: s.Looked, told: s.Told,
		}
		if s.Below > 0 {
			locks[i].below = dels[s.Below-1]
			dels[s.Below-1].open[locks[i]] = struct{}{}
		}
		m.table.add(m.table.slotOf(s.Grant.Key), locks[i])
		if s.Keepable {
			m.keepFor(locks[i])
			locks[i].described = s.Described
		}
	}
	holds := make([]*Hold, len(st.Holds))
	for i, s := range st.Holds {
		h := &Hold{m: m, owner: s.Owner, unlocked: s.Unlocked, closing: s.Closing}
		if s.Lost != "" {
			h.fail(handedLoss(s.Lost, s.Session))
		}
		for _, j := range s.Sessions {
			if sessions[j] == nil {
				h.fail(SessionLost(errors.New("it ended while no daemon served the mount")))
			}
		}
		holds[i] = h
		if h.lost.Load() != nil {
			m.bereft = append(m.bereft, h)
			continue
		}
		for _, j := range s.Locks {
			h.join(locks[j])
		}
		for _, j := range s.Sessions {
			h.rely(sessions[j])
		}
	}
	m.noteUnheld(st, locks, holds)
	for _, s := range st.Left {
		m.left[s.Holder.AcquisitionID] = &left{s.Keys, s.Mode, s.Holder, sessions[s.Session]}
	}
	return m, holds, nil
}

// adoptDelegations continues delegations until Begin, which ends them: nobody knows which tokens were
// given out below them. m.mu is held.
func (m *Manager) adoptDelegations(st *State, sessions []*session) []*delegation {
	dels := make([]*delegation, len(st.Delegations))
	for i, s := range st.Delegations {
		d := &delegation{
			key: s.Grant.Key, keep: s.Keep, lock: &lock{grant: s.Grant, holder: s.Holder, sess: sessions[s.Session], since: time.Now()},
			open: make(map[*lock]struct{}), only: make(map[string]struct{}), phase: delegationStands, used: time.Now(), adopted: true,
		}
		dels[i] = d
		if d.lock.sess == nil {
			continue
		}
		d.saw(s.Grant.Token)
		d.lock.sess.asking++
		m.dels[d.key.Path] = d
		m.recordDelegation(d)
	}
	return dels
}

// noteUnheld notes the locks that only lost holds have: Begin gives them up. m.mu is held.
func (m *Manager) noteUnheld(st *State, locks []*lock, holds []*Hold) {
	unheld := func(l *lock) bool {
		if l == nil {
			return false
		}
		for h := range l.holds {
			if h.lost.Load() == nil {
				return false
			}
		}
		return true
	}
	for i, s := range st.Holds {
		if holds[i].lost.Load() == nil {
			continue
		}
		for _, j := range s.Locks {
			if l := locks[j]; unheld(l) {
				holds[i].join(l)
			}
		}
	}
	m.unheld = slices.DeleteFunc(locks, func(l *lock) bool { return !unheld(l) })
}

// check returns an error if a number in the state is no index.
func (st *State) check() error {
	sessions, locks := len(st.Sessions), len(st.Locks)
	good := func(n, end int) bool { return n >= 0 && n < end }
	for _, l := range st.Locks {
		if !good(l.Session, sessions) {
			return errState
		}
	}
	for _, l := range st.Left {
		if !good(l.Session, sessions) {
			return errState
		}
	}
	for _, d := range st.Delegations {
		if !good(d.Session, sessions) {
			return errState
		}
	}
	for _, l := range st.Locks {
		if l.Below != 0 && (!good(l.Below-1, len(st.Delegations)) || st.Delegations[l.Below-1].Session != l.Session) {
			return errState
		}
	}
	if st.Advisory != nil {
		if err := st.Advisory.check(sessions); err != nil {
			return err
		}
	}
	for _, h := range st.Holds {
		for _, n := range h.Locks {
			if !good(n, locks) {
				return errState
			}
		}
		for _, n := range h.Sessions {
			if !good(n, sessions) {
				return errState
			}
		}
	}
	return nil
}

var errState = errors.New("the state of the locks contradicts itself")

// handedLoss is the loss of a hold that the former process has seen.
func handedLoss(text string, session bool) error {
	if session {
		return SessionLost(errors.New(strings.TrimPrefix(text, ErrSessionLost.Error()+": ")))
	}
	return lockLoss(errors.New(strings.TrimPrefix(text, ErrLockLost.Error()+": ")))
}

func (m *Manager) adoptSession(ctx context.Context, a Adopter, st SessionState, claims []Grant) (*session, error) {
	bs, err := a.AdoptSession(ctx, m.cfg.Session, st.ID, st.TTL, claims)
	if err != nil {
		return nil, err
	}
	sent := m.now() // the deadline counts from this process's own renewal
	if err := bs.Renew(ctx); err != nil {
		bs.(HandedOn).Abandon()
		return nil, err
	}
	s := &session{backend: bs, locks: make(map[*lock]struct{}), formerOver: make(chan struct{})}
	if err := m.renewSession(s, sent); err != nil {
		bs.(HandedOn).Abandon()
		return nil, err
	}
	return s, nil
}

// Begin makes an adopted Manager the owner of its sessions. The former process sends nothing more.
func (m *Manager) Begin() {
	m.mu.Lock()
	sessions, advisory := m.sessions, m.advisory
	m.forsakeLate()
	m.mu.Unlock()
	var removing sync.WaitGroup
	for _, s := range sessions {
		m.tend(s)
		removing.Go(func() { m.removeUnclaimed(s) })
	}
	removed := make(chan struct{})
	m.wg.Go(func() { removing.Wait(); close(removed) })
	if m.died { // else a try that is sent again could find the entry of its own former try in its way
		select {
		case <-removed:
		case <-time.After(unclaimedTime):
		}
	}
	m.endDelegations()
	m.giveUpUnheld() // before a break of them is heard again
	m.beginWork()
	if advisory != nil {
		advisory.resume()
	}
}

// giveUpUnheld gives up the locks of the adopted holds that are lost.
func (m *Manager) giveUpUnheld() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, l := range m.unheld {
		m.surrender(entangled(l))
	}
	for _, h := range m.bereft {
		if !slices.ContainsFunc(h.locks, (*lock).stands) {
			m.surrender(nil, []*Hold{h})
		}
	}
	m.unheld, m.bereft = nil, nil
}

// unclaimedTime bounds how long programs wait until what a dead process has left is removed.
const unclaimedTime = 2 * time.Second

// removeUnclaimed tries for as long as the session lives: other mounts may wait for the entries
// that nobody claims.
func (m *Manager) removeUnclaimed(s *session) {
	remain := func(why error) {
		m.log.Warn("entries of the former daemon that nobody claims remain for now", slog.String("session", s.backend.ID()), slog.Any("error", why))
	}
	late := time.AfterFunc(s.backend.TTL(), func() { remain(ErrUnavailable) })
	defer late.Stop()
	switch err := s.backend.(HandedOn).RemoveUnclaimed(m.ctx); {
	case err == nil:
		close(s.formerOver)
	case m.ctx.Err() == nil:
		remain(err)
	}
}
