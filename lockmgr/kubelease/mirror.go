package kubelease

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/internal/lifetime"
)

// mirror is this mount's copy of the volume's Leases, or of its pulses. One watch
// feeds it, and the answers to this mount's own requests.
type mirror struct {
	clock  boottime.Clock
	pulses bool          // it is of these
	synced chan struct{} // closed when the state was read once

	mu        sync.Mutex
	state                            // GUARDED_BY(mu)
	listeners map[string][]*listener // GUARDED_BY(mu); by the name of the Lease that they wait for
	recalled  map[string]*object     // GUARDED_BY(mu); those of objects that show recalls
	tables    map[string]*object     // GUARDED_BY(mu); those of objects that are tables of advisory locks
	ends      int                    // GUARDED_BY(mu); how many sessions were seen to end, and eras
	written   int64                  // GUARDED_BY(mu); the newest revision of this mount's own writes, which the watch will show
	owedSince boottime.Instant       // GUARDED_BY(mu); while asOf < written: when asOf moved last
	heard     boottime.Instant       // GUARDED_BY(mu); when the server showed something last that it has
	stopWatch func()                 // GUARDED_BY(mu); nil unless the watch stands
	store     lifetime.Store         // GUARDED_BY(mu); nothing that the mirror has is of another era
}

// listener is told of changes.
type listener struct {
	names []string
	ch    chan struct{} // capacity 1
}

// The names for listeners to all of a kind.
const (
	aBreak  = "break"
	aRecall = "recall"
	aTable  = "table" // of advisory locks, and to the end of a session
)

func newMirror(names layout, clock boottime.Clock) *mirror {
	m := &mirror{
		clock:     clock,
		state:     state{names: names},
		synced:    make(chan struct{}),
		listeners: make(map[string][]*listener),
		store:     lifetime.NewStore(),
	}
	m.forget()
	return m
}

// forget makes it the mirror of a store of which nothing is known.
func (m *mirror) forget() {
	m.objects, m.buried = make(map[string]*object), make(map[string]bool)
	m.recalled, m.tables = make(map[string]*object), make(map[string]*object)
	m.asOf, m.written = 0, 0
	m.ends++
}

// newest returns the largest revision that was seen of the store, and its era.
func (m *mirror) newest() (int64, lifetime.Era) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store.Newest, m.store.Era
}

// setBack ends an era, if it still lasts, and returns the one that follows.
func (m *mirror) setBack(of lifetime.Era) (next lifetime.Era, ended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ended = m.store.SetBack(of); ended {
		m.forget()
		m.tellAll()
	}
	return m.store.Era, ended
}

// listen returns a listener to changes of the Leases with these names, and to the end of any
// session: it may free a lock.
func (m *mirror) listen(names ...string) *listener {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := &listener{names: names, ch: make(chan struct{}, 1)}
	for _, n := range names {
		m.listeners[n] = append(m.listeners[n], e)
	}
	return e
}

func (m *mirror) unlisten(e *listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, n := range e.names {
		m.listeners[n] = slices.DeleteFunc(m.listeners[n], func(o *listener) bool { return o == e })
		if len(m.listeners[n]) == 0 {
			delete(m.listeners, n)
		}
	}
}

// The methods below are called with m.mu held.

func (m *mirror) tell(name string) {
	for _, e := range m.listeners[name] {
		select {
		case e.ch <- struct{}{}:
		default:
		}
	}
}

func (m *mirror) tellAll() {
	for name := range m.listeners {
		m.tell(name)
	}
}

func (m *mirror) advance(rev int64) {
	if rev > m.asOf {
		m.asOf, m.owedSince = rev, m.clock.Now()
	}
	m.store.Saw(rev, m.store.Era)
}

// owes notes that the watch has to show rev.
func (m *mirror) owes(rev int64) {
	if m.written <= m.asOf {
		m.owedSince = m.clock.Now()
	}
	m.written = max(m.written, rev)
}

func (m *mirror) put(o *object) {
	m.tellLosers(m.objects[o.name], o)
	m.objects[o.name] = o
	switch o.kind {
	case kindBreak:
		m.tell(aBreak)
	case kindTable:
		m.tables[o.name] = o
		m.tell(aTable)
	}
	delete(m.recalled, o.name)
	if len(o.recalls) > 0 {
		m.recalled[o.name] = o
		m.tell(aRecall)
	}
}

func (m *mirror) remove(o *object) {
	m.tellLosers(o, nil)
	delete(m.objects, o.name)
	delete(m.recalled, o.name)
	switch o.kind {
	case kindSession:
		m.ends++
		m.tellAll()
	case kindTable:
		delete(m.tables, o.name)
		m.tell(aTable)
	}
}

// tellLosers tells the sessions of this mount that had an entry in before and have none now.
// Both may be nil.
func (m *mirror) tellLosers(before, now *object) {
	if before == nil {
		return
	}
	for i := range before.entries {
		if e := &before.entries[i]; m.listeners[e.Session] != nil && now.find(e.grant()) < 0 {
			m.tell(e.Session)
		}
	}
}

// older reports whether o tells nothing new.
func (m *mirror) older(o *object) bool {
	if have := m.objects[o.name]; have != nil {
		return o.rev <= have.rev
	}
	return o.rev <= m.asOf || m.buried[o.name] // it is gone
}

// learn takes in a Lease as the answer to a request of an era has it. The watch
// may be ahead of it.
func (m *mirror) learn(of lifetime.Era, lease *coordinationv1.Lease) (*object, error) {
	o, err := read(lease, m.clock.Now())
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = m.clock.Now()
	if m.store.Era == of && m.shows(o) && !m.older(o) {
		m.put(o)
		m.tell(o.name)
	}
	return o, nil
}

// shows reports whether o is one of the Leases that are mirrored.
func (m *mirror) shows(o *object) bool { return m.pulses == (o.kind == kindPulse) }

// wrote is learn for the answer to a write of this mount's.
func (m *mirror) wrote(of lifetime.Era, lease *coordinationv1.Lease) (*object, error) {
	o, err := m.learn(of, lease)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store.Saw(o.rev, of)
	if m.store.Era == of && m.shows(o) {
		m.owes(o.rev)
	}
	return o, nil
}

// bury notes that a Lease is gone, ahead of the watch. Its name must be one that is used once.
func (m *mirror) bury(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o := m.objects[name]; o != nil {
		m.buried[name] = true
		m.remove(o)
	}
}

// changed takes in an event of an era's watch: events come in order of revision.
func (m *mirror) changed(of lifetime.Era, lease *coordinationv1.Lease, deleted bool) error {
	o, err := read(lease, m.clock.Now())
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.store.Era != of {
		return nil
	}
	m.heard = m.clock.Now()
	have := m.objects[o.name]
	switch {
	case deleted:
		delete(m.buried, o.name)
		if have != nil && have.rev <= o.rev {
			m.remove(have)
		}
	case !m.older(o):
		m.put(o)
	}
	m.advance(o.rev)
	m.tell(o.name)
	return nil
}

// passed notes that nothing else has happened up to rev.
func (m *mirror) passed(of lifetime.Era, rev int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.store.Era == of {
		m.advance(rev)
	}
}

// reading is all Leases as they were at a revision.
type reading struct {
	leases []coordinationv1.Lease
	rev    int64
	era    lifetime.Era
}

// replace takes in all Leases.
func (m *mirror) replace(r reading) error {
	now := m.clock.Now()
	listed := make(map[string]*object, len(r.leases))
	for i := range r.leases {
		o, err := read(&r.leases[i], now)
		if err != nil {
			return err
		}
		listed[o.name] = o
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = now
	if m.store.Era == r.era && r.rev >= m.asOf {
		for name, have := range m.objects {
			if listed[name] == nil && have.rev <= r.rev {
				m.remove(have)
			}
		}
		for _, o := range listed {
			if !m.older(o) {
				m.put(o)
			}
		}
		m.advance(r.rev)
		maps.DeleteFunc(m.buried, func(name string, _ bool) bool { return listed[name] == nil })
	}
	select {
	case <-m.synced:
	default:
		close(m.synced)
	}
	m.tellAll()
	return nil
}

// wentBack returns the revisions of a Lease that is older in a reading at rev than it
// was seen before, if there is one: the store was restored, though it may count on
// from a later revision.
func (m *mirror) wentBack(leases []coordinationv1.Lease, rev int64) (before, now int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range leases {
		have := m.objects[leases[i].Name]
		if have == nil || have.rev > rev {
			continue
		}
		if listed, err := strconv.ParseInt(leases[i].ResourceVersion, 10, 64); err == nil && listed < have.rev {
			return have.rev, listed
		}
	}
	return 0, 0
}

// stuck reports whether the watch has owed us the news of our own write for
// longer than d.
func (m *mirror) stuck(d time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.written > m.asOf && m.clock.Now().Sub(m.owedSince) > d
}

// hear notes that the server has answered.
func (m *mirror) hear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard = m.clock.Now()
}

// lastHeard is when the server did last, or showed something.
func (m *mirror) lastHeard() boottime.Instant {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard
}

// at returns the Lease of that name, nil if there is none.
func (m *mirror) at(name string) *object {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[name]
}

// watched notes that a watch stands, which stop ends, or with nil that none does.
func (m *mirror) watched(stop func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stopWatch = stop
}

// connected reports whether the watch stands.
func (m *mirror) connected() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stopWatch != nil
}

// of returns the Leases of a kind.
func (m *mirror) of(kind string) (found []*object) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.objects {
		if o.kind == kind {
			found = append(found, o)
		}
	}
	return found
}

// standingRecalls returns the recalls that the Leases show.
func (m *mirror) standingRecalls() (found []lockmgr.Recall) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.recalled {
		found = append(found, o.recalls...)
	}
	return found
}

// noted returns the name of the Lease that has a note; "" if none has.
func (m *mirror) noted(id uuid.UUID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, o := range m.recalled {
		if o.notedAt(id) >= 0 {
			return name
		}
	}
	return ""
}
