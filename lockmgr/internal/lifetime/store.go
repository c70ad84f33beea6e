package lifetime

import "context"

// Era is a time in which the store's revisions only grow. It ends when the store is set
// back: restored from a snapshot, or replaced by an empty one. The store does not know
// what it has granted since, so every session of the era ends with it.
type Era context.Context

// Store is the store behind a lock service, as its answers show it. Make it with NewStore.
// Its owner's mutex guards it.
//
// A request notes Era and Newest before it is sent. An answer with an older revision than
// Newest was then is one of a store that was set back.
type Store struct {
	Era    Era
	Newest int64 // the largest revision that was seen in the era
	end    context.CancelFunc
}

// NewStore returns a store in its first era.
func NewStore() Store {
	var s Store
	s.Era, s.end = context.WithCancel(context.Background())
	return s
}

// Saw notes that something of the era of has a revision.
func (s *Store) Saw(rev int64, of Era) {
	if s.Era == of {
		s.Newest = max(s.Newest, rev)
	}
}

// SetBack ends an era, unless it has ended: several answers may show that it has. It
// reports whether this one did.
func (s *Store) SetBack(of Era) (ended bool) {
	if s.Era != of {
		return false
	}
	s.end()
	*s = NewStore()
	return true
}
