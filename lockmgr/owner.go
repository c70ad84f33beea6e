package lockmgr

import (
	"cmp"
	"fmt"
	"time"
)

// Owner is who shares a lock: handles of one Owner share it, those of two Owners exclude
// each other. The policy's scope says what it is: a handle, a process, a pod or the node.
// Comparable; meaningful on this mount only.
type Owner string

// Holder describes to people who holds a lock or waits for it. It decides nothing. It is
// stored in the lock service with the entry.
type Holder struct {
	AcquisitionID AcquisitionID `json:"owner"`
	Session       string        `json:"session"` // the mount's session
	Node          string        `json:"node"`
	Pod           string        `json:"pod,omitempty"` // pod UID, when the caller runs in one
	// PodName is that pod's namespace/name, and Container the name of the
	// caller's container in it, where they are known.
	PodName   string    `json:"pod_name,omitempty"`
	Container string    `json:"container,omitempty"`
	PID       int       `json:"pid,omitempty"` // in the daemon's PID namespace
	UID       uint32    `json:"uid"`
	Comm      string    `json:"comm,omitempty"`
	Since     time.Time `json:"since"` // when the lock was asked for, or has become idle, by the node's wall clock

	// Of a lock that its mount keeps, see Config.Keep. Both may be a second late.
	Turn int  `json:"turn,omitempty"` // how many owners had it before
	Kept bool `json:"kept,omitempty"` // it is idle; the others say who had it last

	// Fencing is the token of an owner who had the lock before its entry was put: below a
	// directory that is delegated to its mount.
	Fencing int64 `json:"fencing,omitempty"`
}

// PodLabel names the holder's pod as well as is known: by its namespace/name, or
// by its UID.
func (h Holder) PodLabel() string { return cmp.Or(h.PodName, h.Pod) }

// String names the holder as an operator would look for it.
func (h Holder) String() string {
	s := h.Node
	if h.PID != 0 {
		s = fmt.Sprintf("pid %d (%s) on %s", h.PID, h.Comm, h.Node)
	}
	if h.Pod != "" {
		s += ", pod " + h.PodLabel()
	}
	if h.AcquisitionID.IsZero() { // of a flock or fcntl lock
		return s
	}
	return s + ", lock " + h.AcquisitionID.String()
}
