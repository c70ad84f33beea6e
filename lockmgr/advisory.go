package lockmgr

import (
	"errors"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr/advisory"
)

// Advisory has the flock(2) and fcntl(2) locks of one mount. A lock is granted when the service has
// it in the mount's row of the file's table. The row is put only if no other row was put since the
// table was read. So if two mounts want conflicting locks, one put fails, and that mount reads the
// table again.
//
// One goroutine at a time works on a table, while there is something to do. Requests that wait need
// no goroutine of the table. A request stands in line in the service only if no other request of
// this mount blocks it, or if its owner may be part of a cycle.
type Advisory struct {
	m       *Manager
	service AdvisoryBackend
	mount   string // of all owners here
	AdvisoryConfig

	// LOCK ORDERING: mu, then Manager.mu. Nothing blocks under mu.
	mu      sync.Mutex
	tables  map[Key]*AdvisoryTable // GUARDED_BY(mu); those that have anything
	ranges  map[uint64]int         // GUARDED_BY(mu); in how many tables an owner has ranges, by Owner.ID
	refused bool                   // GUARDED_BY(mu); no more requests
	tickets int64                  // GUARDED_BY(mu); of requests that waited in local tables
	listed  time.Time              // GUARDED_BY(mu); when the service was last asked who is in the way, for the log
	gens    uint64                 // GUARDED_BY(mu); of private tables
	began   sync.Once              // watching
	tended  chan struct{}          // receives when a table has become private; capacity 1
	working sync.WaitGroup         // Add is GUARDED_BY(mu)
	adopted []*AdvisoryTable       // GUARDED_BY(mu); until resume
	handing bool                   // GUARDED_BY(mu); see handOn
	paused  bool                   // GUARDED_BY(mu); nobody works on the tables, see Quiet
	pauses  int                    // GUARDED_BY(mu); how often handOn was called
	records uint64                 // GUARDED_BY(mu); how many were begun
}

const (
	maxAdvisory  = 4096 // bounds the locks of one mount on one file, and so the size of its row
	maxStanding  = 16   // bounds the requests of one mount that stand in line for one file
	maxDeleted   = 64   // rows, in one put
	advisoryLook = 4 * time.Second
)

// ErrTooMany: the mount has the maximum number of advisory locks on the file.
var ErrTooMany = errors.New("too many advisory locks on one file")

// AdvisoryConfig is what a view does for its advisory locks.
type AdvisoryConfig struct {
	// OnLost is called for a table whose locks were lost, before any other lock there is granted
	// to this mount.
	OnLost func(*AdvisoryTable)
	// OnShared is called before this mount's locks in a private table are published. When it
	// returns, what was written under these locks is on the volume. nil: there is nothing to do.
	OnShared func(*AdvisoryTable)
}

// NewAdvisory makes the Manager keep advisory locks. It is called before requests are made.
// Errors: the lock service cannot keep them.
func (m *Manager) NewAdvisory(cfg AdvisoryConfig) (*Advisory, error) {
	service, ok := m.backend.(AdvisoryBackend)
	if !ok {
		return nil, errors.New("lockmgr: this lock service does not keep flock and fcntl locks")
	}
	a := &Advisory{
		m: m, service: service, mount: uuid.NewString(), AdvisoryConfig: cfg, tended: make(chan struct{}, 1),
		tables: make(map[Key]*AdvisoryTable), ranges: make(map[uint64]int),
	}
	m.mu.Lock()
	m.advisory = a
	st, sessions := m.handed, m.handedSessions
	m.handed, m.handedSessions = nil, nil
	m.mu.Unlock()
	if st != nil {
		a.adopt(st, sessions)
	}
	m.cfg.Record.Put(recordMount, 0, a.mount)
	return a, nil
}

// Owner names an owner of this mount.
func (a *Advisory) Owner(kind advisory.Kind, id uint64) advisory.Owner {
	return advisory.Owner{Mount: a.mount, Kind: kind, ID: id}
}

// Open returns the table of a file. It is the same table until each Open has its Close. keep is how
// long the table stays private without locks; 0: it is never private, nil: Config.Keep.
func (a *Advisory) Open(key Key, keep *time.Duration) *AdvisoryTable {
	if keep == nil {
		keep = &a.m.cfg.Keep
	}
	return a.open(key, false, *keep)
}

func (a *Advisory) open(key Key, local bool, keep time.Duration) *AdvisoryTable {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.refused {
		a.began.Do(a.begin)
	}
	t := a.table(key, local)
	if t.record == 0 || t.private.keep != keep {
		t.private.keep = keep
		t.note()
	}
	t.users++
	return t
}

// table needs mu.
func (a *Advisory) table(key Key, local bool) *AdvisoryTable {
	t := a.tables[key]
	if t == nil {
		t = &AdvisoryTable{
			a: a, key: key, local: local, advanced: make(chan struct{}),
			named: make(map[string]*advisoryRequest), rows: make(map[string]int64), records: make(map[lockName]uint64),
		}
		a.tables[key] = t
	}
	return t
}

// Mine reports whether o is an owner on this mount.
func (a *Advisory) Mine(o advisory.Owner) bool { return o.Mount == a.mount }

// refuse ends all requests, and refuses new ones.
func (a *Advisory) refuse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refused = true
	for _, t := range a.tables {
		t.ask()
	}
}

// close waits until nothing is under way, once Manager.ctx has ended.
func (a *Advisory) close() {
	a.mu.Lock() // nobody begins after this
	tables := len(a.tables)
	a.mu.Unlock()
	if tables > 0 {
		a.working.Wait()
	}
}

// lose makes the tables that rely on s know that it is lost. Each closes one of the channels when it has
// told that.
func (a *Advisory) lose(s *session) (mourned []<-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, t := range a.tables {
		if t.relied.Load() == s || t.private.row && t.sess == s {
			if t.mourned == nil {
				t.mourned = make(chan struct{})
			}
			mourned = append(mourned, t.mourned)
			t.ask()
		}
	}
	return mourned
}
