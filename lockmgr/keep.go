package lockmgr

import (
	"container/list"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// A mount keeps the lock of a file that its programs open again and again. After the last close
// the entry stays, idle, and the next owner on this mount takes it over without asking the
// service. Another mount recalls it.
//
// Whether a lock may be kept is decided before it is asked for, and its entry says so. A recall
// names entries, so it cannot mean a later one. If a recall is lost, others wait until the lock
// was idle for Config.Keep. A mount that hears no recalls takes no lock over (docs/adr/0033).
// See delegation for directories.

// Recall asks mounts to give back entries that they may keep.
type Recall struct {
	ID      uuid.UUID       `json:"-"`
	Entries []AcquisitionID `json:"entries"`
	// Try: the request does not wait. It is told if one of the entries is in use.
	Try bool `json:"try,omitempty"`
}

// Recaller is what a Backend does for mounts that keep locks.
type Recaller interface {
	// WatchRecalls calls found for each present and later Recall, perhaps repeatedly, until ctx
	// ends.
	WatchRecalls(ctx context.Context, found func(Recall))

	// Recalls returns the present Recalls. Errors: ErrUnavailable.
	Recalls(ctx context.Context) ([]Recall, error)

	// InUse answers a Recall with Try. Errors: ErrUnavailable.
	InUse(ctx context.Context, id uuid.UUID) error

	// Describe updates the holders of entries, for people, if the entries still stand.
	// Errors: ErrUnavailable.
	Describe(ctx context.Context, entries []Entry) error

	// DescribesAfter is how long an entry has had one holder when it is described; longer where
	// each costs a request.
	DescribesAfter() time.Duration
}

const (
	hearsFor    = 2 * time.Second        // a lock is taken over at most this long after a read of all recalls was sent
	maxIdle     = 512                    // bounds the idle locks of a mount
	evidenceFor = 2 * time.Second        // a file opened again within this time has its lock kept
	minCoolOff  = 10 * time.Second       // a recalled lock is not kept for this long
	maxCoolOff  = 5 * time.Minute        // minCoolOff doubles up to this while recalls go on
	keeperTick  = 250 * time.Millisecond // how often idle locks are checked
	maxTurn     = 1<<turnBits - 1        // the last owner of a kept lock
	turnBits    = 12
)

// FencingToken is the token of an entry's turn-th owner. A later owner of a conflicting key has a
// larger token, over the life of the volume.
func FencingToken(entry int64, turn int) int64 { return entry<<turnBits | int64(turn) }

// keeper is what a Manager keeps. All of it except constants is GUARDED_BY(Manager.mu).
type keeper struct {
	begun    chan struct{} // constant; receives when there may be a keepable lock; capacity 1
	idle     list.List     // of *lock; the longest idle first
	keepable map[AcquisitionID]*lock
	raised   map[*lock]struct{} // locks whose token is larger than their entry says, or was until describe wrote it there
	pasts    map[Key]*past
	due      time.Time // before this no idle lock is to be released
	tidied   time.Time // when old pasts were last deleted
	heard    time.Time // when the last answered read of all recalls was sent
}

// past is what a mount remembers of a key for which it has no lock.
type past struct {
	used    time.Time // when its lock was last given up, while no other mount wanted it
	cool    time.Time // nothing is kept before this time
	coolFor time.Duration

	// Of a directory: how many locks below it were granted without contention since the time in
	// since.
	granted int
	since   time.Time
}

func (p *past) over(now time.Time) bool {
	return now.Sub(p.used) > evidenceFor && now.Sub(p.cool) > max(p.coolFor, minCoolOff)
}

// keepsFor returns how long a lock of r may be kept; 0: it may not.
func (m *Manager) keepsFor(r *request) time.Duration {
	if r.Keep != nil {
		return *r.Keep
	}
	return m.cfg.Keep
}

// mayKeep reports whether the lock that r will ask for may be kept. m.mu is held.
func (m *Manager) mayKeep(r *request, keys []Key) bool {
	if m.keepsFor(r) == 0 || len(r.Keys) != 1 || len(keys) != 1 || keys[0].Kind != File || r.Mode != Exclusive {
		return false
	}
	p := m.keeper.pasts[keys[0]]
	now := time.Now()
	return p != nil && m.delegationAbove(keys[0]) == nil && now.Sub(p.used) <= evidenceFor && now.After(p.cool)
}

func (k *keeper) noteUse(l *lock) {
	if l.keep == 0 || l.grant.Key.Kind != File || l.grant.Mode != Exclusive || l.contended {
		return
	}
	now := time.Now()
	k.pastOf(l.grant.Key, now).used = now
}

func (k *keeper) pastOf(key Key, now time.Time) *past {
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

// keep makes a lock without holds idle, and reports success. m.mu is held.
func (m *Manager) keep(l *lock) bool {
	if l.below != nil {
		return false
	}
	m.keeper.noteUse(l)
	if !l.keepable || l.recalled || l.changes || l.contended || l.turn == maxTurn || l.fencing&maxTurn == maxTurn || m.refusing || m.keepsNothing ||
		len(l.slot.locks) != 1 || m.keeper.idle.Len() >= maxIdle || l.lost() {
		return false
	}
	m.observe(LockReleased{Held: time.Since(l.since)})
	l.since = time.Now()
	l.owner = ""
	l.slot.owned = nil
	l.idle = m.keeper.idle.PushBack(l)
	if due := l.due(); m.keeper.idle.Len() == 1 || due.Before(m.keeper.due) {
		m.keeper.due = due
	}
	m.table.wake(&l.waiting)
	return true
}

// takeOver gives an idle lock to r, if r needs no answer of the service. m.mu is held.
func (m *Manager) takeOver(l *lock, p *place) bool {
	if p.Mode != Exclusive || len(p.places) != 1 || time.Since(m.keeper.heard) > hearsFor && time.Since(l.asked) > hearsFor {
		return false
	}
	m.keeper.notIdle(l)
	l.owner = p.Owner
	if l.turn++; l.fencing != 0 {
		m.setToken(l, l.fencing+1)
	}
	l.since = time.Now()
	l.holder = p.tracker.tookOver(l)
	m.table.granted(p)
	return true
}

func (k *keeper) notIdle(l *lock) {
	if l.idle != nil {
		k.idle.Remove(l.idle)
		l.idle = nil
	}
}

func (m *Manager) giveIdleBack(l *lock) {
	m.keeper.notIdle(l)
	l.observed = true
	m.table.giveUp(l)
	m.giveBack(l)
}

func (m *Manager) keepFor(l *lock) {
	l.keepable, l.described = true, l.holder
	m.keeper.keepable[l.grant.AcquisitionID] = l
	m.keeper.begin()
}

func (k *keeper) begin() {
	select {
	case k.begun <- struct{}{}:
	default: // one is pending
	}
}

// recall gives back the locks that another mount wants: idle ones now, others at their close.
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

func (m *Manager) recalled(l *lock) {
	l.recalled = true
	m.keeper.coolOff(l.grant.Key)
	m.observe(LockRecalled{Idle: l.idle != nil})
}

// coolOff prevents the lock of a key from being kept for a while. m.mu is held.
func (k *keeper) coolOff(key Key) {
	now := time.Now()
	p := k.pastOf(key, now)
	if now.Sub(p.cool) < p.coolFor {
		p.coolFor = min(2*p.coolFor, maxCoolOff)
	} else {
		p.coolFor = minCoolOff
	}
	p.cool = now.Add(p.coolFor)
}

// runKeeper releases locks idle for too long, and reads the recalls that the watch might have
// missed.
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
		none := len(m.keeper.keepable)+len(m.keeper.raised)+len(m.dels) == 0
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
		m.releaseDue()
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

// due is when an idle lock is released.
func (l *lock) due() time.Time { return l.since.Add(l.keep - keeperTick) }

// releaseDue releases what was idle for too long. A mount has hundreds of idle locks, and few that
// are due.
func (m *Manager) releaseDue() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.keeper.idle.Len() == 0 || now.Before(m.keeper.due) {
		return
	}
	m.keeper.due = now.Add(time.Hour)
	for e := m.keeper.idle.Front(); e != nil; {
		l := e.Value.(*lock)
		e = e.Next()
		switch due := l.due(); {
		case !now.Before(due):
			m.giveIdleBack(l)
		case due.Before(m.keeper.due):
			m.keeper.due = due
		}
	}
}

func (m *Manager) releaseAllIdle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.keeper.idle.Front(); e != nil; {
		l := e.Value.(*lock)
		e = e.Next()
		m.giveIdleBack(l)
	}
}

func (m *Manager) askForRecalls() {
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	sent := time.Now()
	recalls, err := m.backend.Recalls(ctx)
	if err != nil {
		return // the session reports an unanswering service
	}
	for _, r := range recalls {
		m.recall(r)
	}
	m.mu.Lock()
	m.keeper.heard = sent
	m.mu.Unlock()
}

// describe tells the service the present owners of keepable locks, and tokens that were raised.
func (m *Manager) describe() {
	var news []Entry
	var locks []*lock
	tell := func(l *lock) {
		h := l.holder
		h.Turn, h.Kept, h.Fencing = l.turn, l.idle != nil, l.fencing
		if h.Kept {
			h.Since = l.since
		}
		if l.releasing || time.Since(l.since) < m.backend.DescribesAfter() || h == l.described {
			return
		}
		l.described = h
		locks = append(locks, l)
		news = append(news, Entry{Key: l.grant.Key, Mode: l.grant.Mode, Holder: h, Token: l.grant.Token, Held: true})
	}
	m.mu.Lock()
	for _, l := range m.keeper.keepable {
		tell(l)
	}
	for l := range m.keeper.raised {
		if !l.keepable {
			tell(l)
		}
	}
	m.mu.Unlock()
	if len(news) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(m.ctx, m.cfg.AnswerTimeout)
	defer cancel()
	if err := m.backend.Describe(ctx, news); err != nil {
		m.log.Debug("cannot show the present holders of kept locks in the service", slog.Int("locks", len(news)), slog.Any("error", err))
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, l := range locks {
			l.described = Holder{} // describe again
		}
	}
}

// overtaken is what was heard of an entry before the answer to its request.
type overtaken struct {
	breaks   []Break
	recalled bool
	asked    int // how many locks of one id are being put below a delegation
}

func (s *slot) idleLock() *lock {
	if len(s.locks) == 1 && s.locks[0].idle != nil {
		return s.locks[0]
	}
	return nil
}
