package lockmgr

import (
	"container/list"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// A mount keeps the lock of a file that its programs open again and again. At the last close
// the owner's lock ends, and the entry stays in the service as the mount's: idle. The next
// owner on this mount takes it over without asking the service. Another mount that wants it
// recalls it.
//
// Whether a lock may be kept is decided when it is asked for, and its entry says so: only
// those who meet such an entry put a recall. A recall names entries, so it cannot mean a
// later one. Keeping decides nothing about exclusion: the entry stands until it is released
// as any other. If a recall is late or lost, others wait until the lock was idle for
// Config.Keep. A mount that does not hear of recalls, since the service does not answer it or it
// was frozen, takes no lock over (docs/adr/0033). See delegation for directories.

// Recall asks mounts to give back entries that they may keep, for a request that waits for
// them.
type Recall struct {
	ID      uuid.UUID       `json:"-"`
	Entries []AcquisitionID `json:"entries"`
	// Try: the request does not wait for an owner. It wants to be told if one of the entries
	// is in use.
	Try bool `json:"try,omitempty"`
}

// Recaller is what a Backend does for mounts that keep locks.
type Recaller interface {
	// WatchRecalls calls found for each Recall that stands and each that is put later, maybe
	// more than once, until ctx ends.
	WatchRecalls(ctx context.Context, found func(Recall))

	// Recalls returns those that stand. Errors: ErrUnavailable.
	Recalls(ctx context.Context) ([]Recall, error)

	// InUse answers a Recall that has Try. Errors: ErrUnavailable.
	InUse(ctx context.Context, id uuid.UUID) error

	// Describe replaces the holders of entries that may be kept, as people see them. An entry
	// that does not stand any more is left out. Errors: ErrUnavailable.
	Describe(ctx context.Context, entries []Entry) error

	// DescribesAfter is how long an entry has had the same holder when it is described:
	// longer where each costs a request.
	DescribesAfter() time.Duration
}

const (
	hearsFor    = 2 * time.Second        // a lock is not taken over later than this after a mount has asked for recalls
	maxIdle     = 512                    // bounds the idle locks of a mount
	evidenceFor = 2 * time.Second        // a file that is opened again within this time has its lock kept
	minCoolOff  = 10 * time.Second       // how long a lock is not kept after a recall
	maxCoolOff  = 5 * time.Minute        // it doubles up to this while the recalls go on
	keeperTick  = 250 * time.Millisecond // how often idle locks are looked at
	maxTurn     = 1<<turnBits - 1        // the last owner of a kept lock
	turnBits    = 12
)

// FencingToken is the token of the turn-th owner of an entry. Of two owners of conflicting
// keys the later one has the larger one, over the life of the volume.
func FencingToken(entry int64, turn int) int64 { return entry<<turnBits | int64(turn) }

// keeper has what a Manager keeps. All of it is GUARDED_BY(Manager.mu), but the constant.
type keeper struct {
	begun    chan struct{} // constant; receives when there may be a first keepable lock; capacity 1
	idle     list.List     // of *lock, those that are idle for longest come first
	keepable map[AcquisitionID]*lock
	pasts    map[Key]*past
	tidied   time.Time // when the old ones of pasts were last deleted
	heard    time.Time // when the last read of all recalls that was answered was sent
}

// past is what is known of a key that may have no lock now.
type past struct {
	used    time.Time // when its lock was last given up, uncontended
	cool    time.Time // nothing is kept before
	coolFor time.Duration

	// Of a directory: how many locks below it were granted since then, uncontended.
	granted int
	since   time.Time
}

func (p *past) over(now time.Time) bool {
	return now.Sub(p.used) > evidenceFor && now.Sub(p.cool) > max(p.coolFor, minCoolOff)
}

// keepsFor returns how long a lock of r may be kept; 0: not at all.
func (m *Manager) keepsFor(r *request) time.Duration {
	if r.Keep != nil {
		return *r.Keep
	}
	return m.cfg.Keep
}

// mayKeep reports whether the lock that r is about to ask for may be kept. m.mu is held.
func (m *Manager) mayKeep(r *request, keys []Key) bool {
	if m.keepsFor(r) == 0 || len(r.Keys) != 1 || len(keys) != 1 || keys[0].Kind != File || r.Mode != Exclusive {
		return false
	}
	p := m.keeper.pasts[keys[0]]
	now := time.Now()
	return p != nil && m.delegationAbove(keys[0]) == nil && now.Sub(p.used) <= evidenceFor && now.After(p.cool)
}

// noteUse remembers that a lock was used. m.mu is held.
func (m *Manager) noteUse(l *lock) {
	if l.keep == 0 || l.grant.Key.Kind != File || l.grant.Mode != Exclusive || l.contended {
		return
	}
	now := time.Now()
	m.pastOf(l.grant.Key, now).used = now
}

func (m *Manager) pastOf(key Key, now time.Time) *past {
	k := &m.keeper
	if now.Sub(k.tidied) > evidenceFor {
		for key, p := range k.pasts {
			if p.over(now) {
				delete(k.pasts, key)
			}
		}
		k.tidied = now
	}
	p := k.pasts[key]
	if p == nil {
		p = &past{}
		k.pasts[key] = p
	}
	return p
}

// keep makes a lock without holds idle, and reports whether it has. m.mu is held.
func (m *Manager) keep(l *lock) bool {
	if l.below != nil {
		return false
	}
	m.noteUse(l)
	if !l.keepable || l.recalled || l.contended || l.turn == maxTurn || m.refusing ||
		len(l.slot.locks) != 1 || m.keeper.idle.Len() >= maxIdle || l.lost() {
		return false
	}
	m.observe(LockReleased{Held: time.Since(l.since)})
	l.since = time.Now()
	l.owner = ""
	l.slot.owned = nil
	l.idle = m.keeper.idle.PushBack(l)
	m.wake(&l.waiting)
	return true
}

// takeOver gives an idle lock to r, if r may have it without asking the service. m.mu is held.
func (m *Manager) takeOver(l *lock, p *place) bool {
	if p.Mode != Exclusive || len(p.places) != 1 || time.Since(m.keeper.heard) > hearsFor && time.Since(l.asked) > hearsFor {
		return false
	}
	m.notIdle(l)
	l.owner = p.Owner
	l.turn++
	l.since = time.Now()
	l.holder = p.tracker.tookOver(l)
	m.granted(p)
	return true
}

func (m *Manager) notIdle(l *lock) {
	if l.idle != nil {
		m.keeper.idle.Remove(l.idle)
		l.idle = nil
	}
}

// giveIdleBack releases an idle lock. m.mu is held.
func (m *Manager) giveIdleBack(l *lock) {
	m.notIdle(l)
	l.told = true
	m.giveUp(l)
	m.giveBack(l)
}

// keepFor notes that a lock that was granted may be kept. m.mu is held.
func (m *Manager) keepFor(l *lock) {
	l.keepable, l.described = true, l.holder
	m.keeper.keepable[l.grant.AcquisitionID] = l
	m.keeper.begin()
}

// begin wakes runKeeper.
func (k *keeper) begin() {
	select {
	case k.begun <- struct{}{}:
	default: // it is known
	}
}

// recall gives back the locks that another mount wants: those that are idle now, the others
// at their close.
func (m *Manager) recall(r Recall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	inUse := false
	for _, id := range r.Entries {
		if o := m.early[id]; o != nil {
			o.recalled = true
			inUse = true
			continue
		}
		if d := m.delegationOfID(id); d != nil {
			m.recalledDir(d)
			continue
		}
		l := m.keeper.keepable[id]
		if l == nil || l.releasing {
			continue
		}
		if !l.recalled {
			m.recalled(l)
		}
		if l.idle != nil {
			m.giveIdleBack(l)
			continue
		}
		inUse = true
	}
	if inUse && r.Try && !m.closed {
		m.wg.Go(func() {
			ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
			defer cancel()
			if err := m.backend.InUse(ctx, r.ID); err != nil {
				m.log.Debug("a recall was not answered", slog.String("recall", r.ID.String()), slog.Any("error", err))
			}
		})
	}
}

// recalled notes that another mount wants a lock. m.mu is held.
func (m *Manager) recalled(l *lock) {
	l.recalled = true
	m.coolOff(l.grant.Key)
	m.observe(LockRecalled{Idle: l.idle != nil})
}

// coolOff keeps the lock of a key from being kept for a while. m.mu is held.
func (m *Manager) coolOff(key Key) {
	now := time.Now()
	p := m.pastOf(key, now)
	if now.Sub(p.cool) < p.coolFor {
		p.coolFor = min(2*p.coolFor, maxCoolOff)
	} else {
		p.coolFor = minCoolOff
	}
	p.cool = now.Add(p.coolFor)
}

// runKeeper releases what is idle for too long, and asks for recalls that the watch has not
// told, for as long as there are locks that may be kept.
func (m *Manager) runKeeper() {
	tick := time.NewTicker(keeperTick)
	defer tick.Stop()
	select {
	case <-m.keeper.begun:
	case <-m.ctx.Done():
		return
	}
	m.wg.Go(func() { m.backend.WatchRecalls(m.ctx, m.recall) })
	var asked time.Time
	var describing atomic.Bool
	for {
		m.mu.Lock()
		none := len(m.keeper.keepable)+len(m.dels) == 0
		m.mu.Unlock()
		if none {
			select {
			case <-m.keeper.begun:
			case <-m.ctx.Done():
				return
			}
		}
		select {
		case <-tick.C:
		case <-m.ctx.Done():
			return
		}
		m.releaseIdle(func(l *lock) bool { return time.Since(l.since) >= l.keep-keeperTick })
		m.tendDelegations()
		if now := time.Now(); now.Sub(asked) >= time.Second {
			asked = now
			if describing.CompareAndSwap(false, true) {
				m.wg.Go(func() { // it may take long
					defer describing.Store(false)
					m.describe()
				})
			}
			m.askForRecalls()
		}
	}
}

// releaseIdle gives back the idle locks that are due.
func (m *Manager) releaseIdle(due func(*lock) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.keeper.idle.Front(); e != nil; {
		l := e.Value.(*lock)
		e = e.Next()
		if due(l) {
			m.giveIdleBack(l)
		}
	}
}

func (m *Manager) askForRecalls() {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	sent := time.Now()
	recalls, err := m.backend.Recalls(ctx)
	if err != nil {
		return // the session tells of a service that does not answer
	}
	for _, r := range recalls {
		m.recall(r)
	}
	m.mu.Lock()
	m.keeper.heard = sent
	m.mu.Unlock()
}

// describe tells the service who has the locks that may be kept: they have had several owners.
func (m *Manager) describe() {
	var news []Entry
	var locks []*lock
	m.mu.Lock()
	for _, l := range m.keeper.keepable {
		h := l.holder
		h.Turn, h.Kept = l.turn, l.idle != nil
		if h.Kept {
			h.Since = l.since
		}
		if l.releasing || time.Since(l.since) < m.backend.DescribesAfter() || h == l.described {
			continue
		}
		l.described = h
		locks = append(locks, l)
		news = append(news, Entry{Key: l.grant.Key, Mode: l.grant.Mode, Holder: h, Token: l.grant.Token, Held: true})
	}
	m.mu.Unlock()
	if len(news) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	if err := m.backend.Describe(ctx, news); err != nil {
		m.log.Debug("present holders are not shown", slog.Int("locks", len(news)), slog.Any("error", err))
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, l := range locks {
			l.described = Holder{} // it is told again
		}
	}
}

// overtaken is what was told of an entry before the service's answer to its request.
type overtaken struct {
	breaks   []Break
	recalled bool
}

// idleLock returns the lock of a slot that is idle, or nil.
func (s *slot) idleLock() *lock {
	if len(s.locks) == 1 && s.locks[0].idle != nil {
		return s.locks[0]
	}
	return nil
}
