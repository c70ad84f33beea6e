package kubelease

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/internal/retry"
	"github.com/lockfs/lockfs/lockmgr"
)

// object is a Lease of the volume as it was at rev. It is immutable.
type object struct {
	lease *coordinationv1.Lease
	name  string
	kind  string
	rev   int64 // the resourceVersion

	entries     []entry          // of a lock
	notes       []note           // of a lock
	recalls     []lockmgr.Recall // see recallsOf
	undelegated int64            // of the directories' Lease: when a delegation went last; 0: none has
	rows        []row            // of a table of advisory locks
	broken      error            // why the entries or rows cannot be read: no lock is granted then

	seen boottime.Instant // when this process saw rev for the first time
}

// entry is one acquisition of one key: holder or waiter.
type entry struct {
	lockmgr.Holder
	Mode string `json:"mode"` // modeWrite, modeRead or modeDelegated
	// Token is the resourceVersion of the write that put the entry. That write cannot
	// know it: the next one fills it in.
	Token int64 `json:"token,omitempty"`
	// Keep: its mount may keep the lock. See recallsOf.
	Keep bool `json:"keep,omitempty"`
	// Upgrades are owners of the same key whom this one does not wait for.
	Upgrades []lockmgr.AcquisitionID `json:"upgrades,omitempty"`
	// Dir is the directory, escaped, of an entry of the tree's Lease.
	Dir string `json:"dir,omitempty"`

	key lockmgr.Key
}

const (
	modeWrite     = "w" // lockmgr.Exclusive
	modeRead      = "r" // lockmgr.Shared
	modeDelegated = "k" // lockmgr.Delegated
)

func modeName(m lockmgr.Mode) string {
	switch m {
	case lockmgr.Shared:
		return modeRead
	case lockmgr.Delegated:
		return modeDelegated
	}
	return modeWrite
}

func (e *entry) mode() lockmgr.Mode {
	switch e.Mode {
	case modeRead:
		return lockmgr.Shared
	case modeDelegated:
		return lockmgr.Delegated
	}
	return lockmgr.Exclusive
}

// grant returns the grant that the entry stands for, or waits for.
func (e *entry) grant() lockmgr.Grant {
	return lockmgr.Grant{Key: e.key, Mode: e.mode(), AcquisitionID: e.AcquisitionID, Token: e.Token}
}

// of reports whether e is g's entry, whatever its token.
func (e *entry) of(g lockmgr.Grant) bool {
	return e.AcquisitionID == g.AcquisitionID && e.key == g.Key && e.mode() == g.Mode
}

// inWayOf reports whether e, which came before, keeps other from being granted. A delegation is in
// no way of its own session's requests, nor are files of its own session in its way.
func (e *entry) inWayOf(other *entry) bool {
	if e.Session == other.Session && e.Mode != other.Mode &&
		(e.Mode == modeDelegated || other.Mode == modeDelegated && e.key.Kind != lockmgr.Tree) {
		return false
	}
	return e.AcquisitionID != other.AcquisitionID && e.grant().Blocks(other.grant(), other.Upgrades)
}

// read makes an object of a Lease. It fails for one that is none of ours.
func read(lease *coordinationv1.Lease, now boottime.Instant) (*object, error) {
	rev, err := strconv.ParseInt(lease.ResourceVersion, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%s has resourceVersion %q: tokens need numbers", lease.Name, lease.ResourceVersion)
	}
	lease.ManagedFields = nil // the server has them
	o := &object{lease: lease, name: lease.Name, kind: lease.Labels[labelKind], rev: rev, seen: now}
	switch o.kind {
	case kindFile, kindInode, kindTree:
		o.broken = o.readEntries()
	case kindTable:
		o.broken = o.readRows()
	}
	return o, nil
}

func (o *object) readEntries() error {
	notes := o.lease.Annotations
	if text := notes[noteEntries]; text != "" {
		if err := json.Unmarshal([]byte(text), &o.entries); err != nil {
			return fmt.Errorf("entries of %s: %w", o.name, err)
		}
	}
	for i := range o.entries {
		e := &o.entries[i]
		path := e.Dir
		if o.kind != kindTree {
			path = notes[noteKey]
		}
		var err error
		if e.key, err = keyOf(o.kind, path); err != nil {
			return fmt.Errorf("entries of %s: %w", o.name, err)
		}
		if e.Token == 0 {
			e.Token = o.rev
		}
	}
	if text := notes[noteRecalls]; text != "" {
		if err := json.Unmarshal([]byte(text), &o.notes); err != nil {
			return fmt.Errorf("recalls of %s: %w", o.name, err)
		}
	}
	o.recalls = recallsOf(o.entries, o.notes)
	if text, ok := notes[noteUndelegated]; ok {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%s of %s: %w", noteUndelegated, o.name, err)
		}
		o.undelegated = cmp.Or(n, o.rev)
	}
	return nil
}

// undelegates returns the noteUndelegated of o with other entries. A write cannot know its own
// revision: 0 stands for that, until the next write fills it in.
func (o *object) undelegates(entries []entry) (n int64, ok bool) {
	if o == nil {
		return 0, false
	}
	for _, e := range o.entries {
		if e.Mode == modeDelegated && !slices.ContainsFunc(entries, func(kept entry) bool { return kept.of(e.grant()) }) {
			return 0, true
		}
	}
	return o.undelegated, o.undelegated != 0
}

// revision is 0 if there is no Lease.
func (o *object) revision() int64 {
	if o == nil {
		return 0
	}
	return o.rev
}

// find returns the index of g's entry, whatever its token; -1 if there is none.
func (o *object) find(g lockmgr.Grant) int {
	if o == nil {
		return -1
	}
	return slices.IndexFunc(o.entries, func(e entry) bool { return e.of(g) })
}

// duration is how long a session lives after it was seen to be renewed; never
// ends is one that does not say.
func (o *object) duration() time.Duration {
	if s := o.lease.Spec.LeaseDurationSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return math.MaxInt64
}

func (o *object) sessionID() string { return o.lease.Labels[labelSession] }

// fits returns why the entries for k cannot be put in o, or nil. Names are made of
// hashes.
func (l layout) fits(o *object, k lockmgr.Key) error {
	if o == nil {
		return nil
	}
	err := o.broken
	notes := o.lease.Annotations
	if err == nil && (o.lease.Labels[labelVolume] != l.hash || notes[noteVolume] != l.volume || k.Kind != lockmgr.Tree && notes[noteKey] != escape(k.Path)) {
		err = fmt.Errorf("the lease %s is for %q in volume %q, and not for %s in volume %s", o.name, notes[noteKey], notes[noteVolume], k, l.volume)
	}
	if err != nil {
		return retry.Refused(err)
	}
	return nil
}

// newLease is an empty Lease of the volume.
func (l layout) newLease(name, kind string) *coordinationv1.Lease {
	of := labelVolume
	if kind == kindPulse {
		of = labelPulses
	}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name:        name,
		Labels:      map[string]string{of: l.hash, labelKind: kind},
		Annotations: map[string]string{noteVolume: l.volume},
	}}
}

// renewed is o's Lease with a later renewTime, also if the clock was set back: the server
// does not write an Update that changes nothing, and no mount would see it.
func (o *object) renewed() *coordinationv1.Lease {
	lease := o.lease.DeepCopy()
	now := metav1.NowMicro()
	if before := lease.Spec.RenewTime; before != nil && !now.After(before.Time) {
		now = metav1.NewMicroTime(before.Add(time.Microsecond))
	}
	lease.Spec.RenewTime = &now
	return lease
}

// lockLease is the Lease that o, or nil if there is none, becomes with entries;
// joined says that one more owner is among them.
func (l layout) lockLease(o *object, k lockmgr.Key, entries []entry, joined bool) (*coordinationv1.Lease, error) {
	text, err := json.Marshal(entries)
	if err != nil {
		return nil, fmt.Errorf("kubelease: entries: %w", err)
	}
	var lease *coordinationv1.Lease
	switch {
	case o != nil:
		lease = o.lease.DeepCopy()
	case k.Kind == lockmgr.Tree:
		lease = l.newLease(l.tree(), kindTree)
	default:
		kind := kindFile
		if k.Kind == lockmgr.Inode {
			kind = kindInode
		}
		lease = l.newLease(l.lock(k), kind)
		lease.Annotations[noteKey] = escape(k.Path)
	}
	lease.Labels, lease.Annotations = maps.Clone(lease.Labels), maps.Clone(lease.Annotations)
	lease.Annotations[noteEntries] = string(text)
	if n, ok := o.undelegates(entries); ok {
		lease.Annotations[noteUndelegated] = strconv.FormatInt(n, 10)
	}
	delete(lease.Annotations, noteFence)
	delete(lease.Labels, labelSession)
	var recalls []note
	if o != nil {
		recalls = o.notes
	}
	if err := setNotes(lease, entries, recalls); err != nil {
		return nil, err
	}
	lease.Spec.HolderIdentity, lease.Spec.AcquireTime = nil, nil
	if len(entries) > 0 {
		first := entries[0]
		id := first.AcquisitionID.String()
		lease.Labels[labelSession] = first.Session
		lease.Spec.HolderIdentity = &id
		if !first.Since.IsZero() {
			lease.Spec.AcquireTime = &metav1.MicroTime{Time: first.Since}
		}
	}
	if owners := lease.Spec.LeaseTransitions; joined && (owners == nil || *owners < math.MaxInt32) {
		n := int32(1)
		if owners != nil {
			n += *owners
		}
		lease.Spec.LeaseTransitions = &n
	}
	return lease, nil
}
