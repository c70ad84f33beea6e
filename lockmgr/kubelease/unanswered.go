package kubelease

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/lockfs/lockfs/internal/journal"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// unanswered are the writes of locks' Leases that were not answered: they may yet be carried out, on
// condition of a revision. Whoever wants to know reads the Lease. Before another process has the locks,
// they must be void.
//
// A process that hands its locks on voids them itself. One that dies leaves records: of each write from
// before it is sent until it is answered, or void.
type unanswered struct {
	mu       sync.Mutex
	part     *journal.Part         // GUARDED_BY(mu); nil: nothing is recorded
	begun    uint64                // GUARDED_BY(mu); how many writes there were
	givenUp  map[target]*sentWrite // GUARDED_BY(mu); the newest that were sent and given up
	underWay map[uint64]*sentWrite // GUARDED_BY(mu); by number
}

// target is what a write is for. Whether the Lease was there when it was sent makes a difference: a
// Lease that is created after it was deleted is another one.
type target struct {
	name    string
	creates bool
}

// sentWrite is a write of a lock's Lease.
type sentWrite struct {
	writeRecord
	number uint64
	former bool // another process has sent it, and has died
}

// writeRecord is what has to be known of a write to make it void.
type writeRecord struct {
	_    struct{} `cbor:",toarray"`
	Name string   // of the Lease
	Kind string
	Key  string // as the Lease's annotation has it
	Base int64  // the revision that it replaces; 0: it creates
}

func (w writeRecord) target() target { return target{w.Name, w.Base == 0} }

// mayCome reports whether it may yet be carried out if the Lease is o, which may be nil.
func (w writeRecord) mayCome(o *object) bool {
	return o.revision() <= w.Base && (o != nil || w.Base == 0)
}

// recordIn records from now on in part.
func (u *unanswered) recordIn(part *journal.Part) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.part = part
	for _, w := range u.givenUp {
		u.put(w)
	}
	for _, w := range u.underWay {
		u.put(w)
	}
}

// put records a write, and drop ends its record. mu is held.
func (u *unanswered) put(w *sentWrite)  { u.part.Put(lockmgr.RecordRequest, w.number, w.writeRecord) }
func (u *unanswered) drop(w *sentWrite) { u.part.Delete(lockmgr.RecordRequest, w.number) }

// begin notes a write that is about to be sent. It returns nil if nothing depends on when that is
// carried out.
func (u *unanswered) begin(o *object, lease *coordinationv1.Lease) *sentWrite {
	switch lease.Labels[labelKind] {
	case kindFile, kindInode, kindTree, kindTable:
	default:
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.begun++
	w := &sentWrite{
		writeRecord: writeRecord{Name: lease.Name, Kind: lease.Labels[labelKind], Key: lease.Annotations[noteKey], Base: o.revision()},
		number:      u.begun,
	}
	if u.underWay == nil {
		u.underWay = make(map[uint64]*sentWrite)
	}
	u.underWay[w.number] = w
	u.put(w)
	return w
}

// end notes how a write has ended.
func (u *unanswered) end(w *sentWrite, err error) {
	if w == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.underWay, w.number)
	switch {
	case err == nil, errors.Is(err, errMoved) && w.Base != 0:
		for _, creates := range []bool{false, true} {
			t := target{w.Name, creates}
			before := u.givenUp[t]
			if before != nil && (t == w.target() && before.Base <= w.Base || err == nil && before.number < w.number) {
				u.forget(before)
			}
		}
	case errors.Is(err, lockmgr.ErrUnavailable) && !errors.Is(err, retry.ErrRefused):
		u.giveUp(w)
		return
	}
	u.drop(w)
}

// giveUp notes a recorded write that was sent, and that nobody waits for any more. Of two with the same
// target, that of the older version is void. mu is held.
func (u *unanswered) giveUp(w *sentWrite) {
	before := u.givenUp[w.target()]
	switch {
	case before != nil && before.Base > w.Base:
		u.drop(w)
		return
	case before != nil:
		u.drop(before)
	case u.givenUp == nil:
		u.givenUp = make(map[target]*sentWrite)
	}
	u.givenUp[w.target()] = w
}

// forget notes that a write that was given up is void, or was carried out. mu is held.
func (u *unanswered) forget(w *sentWrite) {
	if u.givenUp[w.target()] == w {
		delete(u.givenUp, w.target())
		u.drop(w)
	}
}

func (u *unanswered) answered(w *sentWrite) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.forget(w)
}

// recover takes over the writes that a process which has died had no answer to, with their records.
func (u *unanswered) recover(r *journal.Records) error {
	all, err := journal.All[writeRecord](r, lockmgr.RecordRequest)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, record := range all {
		u.begun++
		w := &sentWrite{writeRecord: record, number: u.begun, former: true}
		u.put(w)
		u.giveUp(w)
	}
	return nil
}

// those returns the writes that were given up and that are chosen.
func (u *unanswered) those(chosen func(*sentWrite) bool) (list []*sentWrite) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, w := range u.givenUp {
		if chosen(w) {
			list = append(list, w)
		}
	}
	return list
}

// void makes writes void that were not answered, urgently. The mirror then shows all that they have done.
func (b *Backend) void(ctx context.Context, writes []*sentWrite) error {
	return each(ctx, writes, func(w *sentWrite) error { return b.voidOne(ctx, b.urgent(), w) })
}

// voidFormer makes void what a process that has died had no answer to, if it is chosen.
func (b *Backend) voidFormer(ctx context.Context, chosen func(*sentWrite) bool) error {
	writes := b.unanswered.those(func(w *sentWrite) bool { return w.former && chosen(w) })
	if len(writes) == 0 {
		return nil
	}
	if b.outgoing.Enter(ctx) != nil {
		return retry.Ended(ctx)
	}
	defer b.outgoing.Leave()
	return b.void(ctx, writes)
}

// voidOne writes the Lease in the place of a write that was not answered: one of the two is refused.
func (b *Backend) voidOne(ctx context.Context, by coordinationclient.LeaseInterface, w *sentWrite) error {
	o := b.mirror.at(w.Name)
	if o.revision() < w.Base { // it is gone, or the mirror is behind
		var err error
		if o, err = b.getBy(ctx, by, w.Name); err != nil {
			return err
		}
	}
	if w.mayCome(o) {
		lease, err := b.names.fence(o, w.writeRecord)
		if err == nil {
			_, err = b.send(ctx, by, o, lease)
		}
		if errors.Is(err, errMoved) { // perhaps it was carried out just now
			if o, err = b.getBy(ctx, by, w.Name); err == nil && w.mayCome(o) {
				err = fmt.Errorf("%w: %w", lockmgr.ErrUnavailable, errMoved)
			}
		}
		if err != nil {
			return fmt.Errorf("lease %s: %w", w.Name, err)
		}
	}
	b.unanswered.answered(w)
	return nil
}

// fence returns the Lease that o, or nil if there is none, becomes without any change. It is of the
// same key as a write.
func (l layout) fence(o *object, like writeRecord) (*coordinationv1.Lease, error) {
	k := lockmgr.Key{Kind: lockmgr.Tree}
	var entries []entry
	var rows []row
	var err error
	if like.Kind != kindTree {
		k, err = keyOf(like.Kind, like.Key)
	}
	if err == nil {
		err = l.fits(o, k)
	}
	if err != nil {
		return nil, err
	}
	if o != nil {
		entries, rows = o.entries, o.rows
	}
	if like.Kind == kindTable {
		return l.tableLease(o, k, rows, uuid.NewString())
	}
	lease, err := l.lockLease(o, k, entries, false)
	if err == nil {
		lease.Annotations[noteFence] = uuid.NewString()
	}
	return lease, err
}
