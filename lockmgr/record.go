package lockmgr

import (
	"errors"
	"time"

	"github.com/lockfs/lockfs/internal/journal"
)

// A mount whose process dies leaves its locks to the next one by records: of its sessions, of the
// holds that open files have, of delegated directories, and of advisory locks. A record is written
// before anybody can depend on what it says, and removed or replaced before that becomes untrue. An
// entry in the service that no record names belongs to nobody: the next process removes it
// (docs/adr/0070).

// The kinds of records.
const (
	recordSession journal.Kind = iota
	recordHold
	recordDelegation
	recordMount // its name, see Advisory
	recordTable // of advisory locks
	recordRange // an advisory lock
)

// FirstKind is the first kind of record that other packages can use.
const FirstKind journal.Kind = 16

// RecordRequest is the kind of the records that an Adopter makes. The Adopter chooses their ids.
const RecordRequest = FirstKind - 1

type sessionRecord struct {
	_ struct{} `cbor:",toarray"`
	SessionState
}

// holdRecord is a hold, by itself: locks that several holds have are in the record of each.
type holdRecord struct {
	_        struct{} `cbor:",toarray"`
	Owner    Owner
	Unlocked bool
	Lost     string
	Session  bool
	Closing  bool
	Sessions []string
	Locks    []lockRecord
}

type lockRecord struct {
	_         struct{} `cbor:",toarray"`
	Grant     grantRecord
	Since     time.Time
	Holder    holderRecord
	Session   string
	Contended bool
	Keep      time.Duration
	Keepable  bool
	Asked     time.Time
	Recalled  bool
	Turn      int
	Fencing   int64
	Below     string // the path of the delegated directory that covers it; "": none
	Unsettled bool
	Changes   bool
	Looked    bool
	Told      bool
}

// holderRecord is a Holder without the names of its fields.
type holderRecord struct {
	_                       struct{} `cbor:",toarray"`
	ID                      AcquisitionID
	Session, Node           string
	Pod, PodName, Container string
	PID                     int
	UID                     uint32
	Comm                    string
	Since                   time.Time
	Turn                    int
	Kept                    bool
	Fencing                 int64
}

func (h Holder) record() holderRecord {
	return holderRecord{
		ID: h.AcquisitionID, Session: h.Session, Node: h.Node, Pod: h.Pod, PodName: h.PodName, Container: h.Container,
		PID: h.PID, UID: h.UID, Comm: h.Comm, Since: h.Since, Turn: h.Turn, Kept: h.Kept, Fencing: h.Fencing,
	}
}

func (h holderRecord) holder() Holder {
	return Holder{
		AcquisitionID: h.ID, Session: h.Session, Node: h.Node, Pod: h.Pod, PodName: h.PodName, Container: h.Container,
		PID: h.PID, UID: h.UID, Comm: h.Comm, Since: h.Since, Turn: h.Turn, Kept: h.Kept, Fencing: h.Fencing,
	}
}

type grantRecord struct {
	_     struct{} `cbor:",toarray"`
	Kind  Kind
	Path  string
	Mode  Mode
	ID    AcquisitionID
	Token int64
}

func (g Grant) record() grantRecord {
	return grantRecord{Kind: g.Key.Kind, Path: g.Key.Path, Mode: g.Mode, ID: g.AcquisitionID, Token: g.Token}
}

func (g grantRecord) grant() Grant {
	return Grant{Key: Key{g.Kind, g.Path}, Mode: g.Mode, AcquisitionID: g.ID, Token: g.Token}
}

type delegationRecord struct {
	_       struct{} `cbor:",toarray"`
	Grant   grantRecord
	Holder  holderRecord
	Session string
	Keep    time.Duration
}

// recordSession records a session from now on. m.mu is held.
func (m *Manager) recordSession(s *session) {
	if !m.cfg.Record.Keeps() {
		return
	}
	m.records++
	s.record = m.records
	m.cfg.Record.Put(recordSession, s.record, sessionRecord{SessionState: SessionState{s.backend.ID(), s.backend.TTL()}})
}

// unrecordSession comes before the session ends. m.mu is held.
func (m *Manager) unrecordSession(s *session) { m.cfg.Record.Delete(recordSession, s.record) }

// Record records the hold until Release, and returns the number by which Recovered finds it.
func (h *Hold) Record() uint64 {
	m := h.m
	if !m.cfg.Record.Keeps() {
		return 0
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if h.record == 0 {
		m.records++
		h.record = m.records
		h.write()
	}
	return h.record
}

// write brings the record of a hold up to date, if it has one. m.mu is held.
func (h *Hold) write() {
	if h.record == 0 {
		return
	}
	r := holdRecord{Owner: h.owner, Unlocked: h.unlocked, Closing: h.closing}
	if why := h.why(); why != nil && !h.unlocked {
		r.Lost, r.Session = why.Error(), errors.Is(why, ErrSessionLost)
	}
	for _, s := range h.relied() {
		r.Sessions = append(r.Sessions, s.backend.ID())
	}
	for _, l := range h.locks {
		if h.surrendered || r.Lost != "" && !l.stands() {
			continue
		}
		k := lockRecord{
			Grant: l.grant.record(), Since: l.since, Holder: l.holder.record(), Session: l.sess.backend.ID(), Contended: l.contended, Keep: l.keep,
			Keepable: l.keepable, Asked: l.asked, Recalled: l.recalled, Turn: l.turn, Fencing: l.fencing,
			Unsettled: l.unsettled, Changes: l.changes, Looked: l.looked, Told: l.told,
		}
		if l.below != nil {
			k.Below = l.below.key.Path
		}
		r.Locks = append(r.Locks, k)
	}
	h.m.cfg.Record.Put(recordHold, h.record, r)
}

// rewrite brings the records of all holds of a lock up to date. m.mu is held.
func (l *lock) rewrite() {
	for h := range l.holds {
		h.write()
	}
}

// recordDelegation records a delegation that stands. m.mu is held.
func (m *Manager) recordDelegation(d *delegation) {
	if !m.cfg.Record.Keeps() {
		return
	}
	m.records++
	d.record = m.records
	m.cfg.Record.Put(recordDelegation, d.record, delegationRecord{Grant: d.lock.grant.record(), Holder: d.lock.holder.record(), Session: d.lock.sess.backend.ID(), Keep: d.keep})
}

// Recovered returns the state that a dead process has left in its records, with the holds and the
// tables of the numbers that Record has returned. Errors: a record is of another format.
func Recovered(r *journal.Records, holds, tables []uint64) (*State, error) {
	sessions, err := journal.All[sessionRecord](r, recordSession)
	if err != nil {
		return nil, err
	}
	delegations, err := journal.All[delegationRecord](r, recordDelegation)
	if err != nil {
		return nil, err
	}
	recorded, err := journal.All[holdRecord](r, recordHold)
	if err != nil {
		return nil, err
	}
	st := &State{Died: true}
	index := make(map[string]int)
	for _, s := range sessions {
		index[s.ID] = len(st.Sessions)
		st.Sessions = append(st.Sessions, s.SessionState)
	}
	dirs := make(map[string]int)
	for _, d := range delegations {
		if s, ok := index[d.Session]; ok {
			st.Delegations = append(st.Delegations, DelegationState{d.Grant.grant(), d.Holder.holder(), s, d.Keep})
			dirs[d.Grant.Path] = len(st.Delegations)
		}
	}
	type name struct {
		kind Kind
		path string
		id   AcquisitionID
	}
	locks := make(map[name]int)
	for _, number := range holds {
		h, ok := recorded[number]
		if !ok { // its owner was about to forget it
			h.Lost = "it was released"
		}
		hs := HoldState{Owner: h.Owner, Unlocked: h.Unlocked, Lost: h.Lost, Session: h.Session, Closing: h.Closing}
		lose := func() {
			if hs.Lost == "" {
				hs.Lost, hs.Session = "its session was lost before the daemon died", true
			}
		}
		for _, id := range h.Sessions {
			if s, ok := index[id]; ok {
				hs.Sessions = append(hs.Sessions, s)
			} else {
				lose()
			}
		}
		for _, k := range h.Locks {
			s, ok := index[k.Session]
			below := 0
			if ok && k.Below != "" {
				below, ok = dirs[k.Below]
			}
			if !ok {
				lose()
				continue
			}
			n := name{k.Grant.Kind, k.Grant.Path, k.Grant.ID}
			i, had := locks[n]
			if !had {
				i = len(st.Locks)
				locks[n] = i
				st.Locks = append(st.Locks, LockState{
					Grant: k.Grant.grant(), Since: k.Since, Holder: k.Holder.holder(), Owner: h.Owner, Session: s, Contended: k.Contended,
					Keep: k.Keep, Keepable: k.Keepable, Asked: k.Asked, Recalled: k.Recalled, Turn: k.Turn, Fencing: k.Fencing,
					Below: below, Unsettled: k.Unsettled, Changes: k.Changes, Looked: k.Looked, Told: k.Told,
				})
			}
			hs.Locks = append(hs.Locks, i)
		}
		if hs.Lost != "" {
			hs.Sessions = nil
		}
		st.Holds = append(st.Holds, hs)
	}
	st.Advisory, err = recoveredAdvisory(r, tables, index)
	return st, err
}
