package lockmgr

import (
	"cmp"
	"fmt"
	"time"
)

// Owner identifies what shares a lock by the policy's scope: a handle, a process, a pod or the
// node. Two Owners exclude each other. Comparable; meaningful on this mount only.
type Owner string

// Holder describes a holder or waiter to people, in the entry. It decides nothing.
type Holder struct {
	AcquisitionID AcquisitionID `json:"lock"`
	Session       string        `json:"session"` // the mount's session
	Node          string        `json:"node"`
	Pod           string        `json:"pod,omitempty"` // pod UID, if the caller runs in a pod
	// PodName is that pod's namespace/name, Container the caller's container in it, if known.
	PodName   string    `json:"pod_name,omitempty"`
	Container string    `json:"container,omitempty"`
	PID       int       `json:"pid,omitempty"` // in the daemon's PID namespace
	UID       uint32    `json:"uid"`
	Comm      string    `json:"comm,omitempty"`
	Since     time.Time `json:"since"` // when the lock was requested or became idle, by the node's wall clock

	// Of a lock that its mount keeps, see Config.Keep. Both may be a second late.
	Turn int  `json:"turn,omitempty"` // how many owners had it before
	Kept bool `json:"kept,omitempty"` // idle; the other fields describe the last owner

	// Fencing is the token of an owner that had the lock before its entry was put, in a delegated
	// directory.
	Fencing int64 `json:"fencing,omitempty"`
}

// PodLabel is the pod's namespace/name, or else its UID.
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
