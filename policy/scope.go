package policy

import "strings"

// Scope says who counts as one owner of locks.
type Scope string

// The scopes. Handles of one owner share a lock, two owners exclude each other.
const (
	ScopeAuto    Scope = "auto"    // the pod of the caller, or its process outside of one
	ScopeHandle  Scope = "handle"  // each open file by itself
	ScopeProcess Scope = "process" // a process with all its threads
	ScopePod     Scope = "pod"     // all processes of a pod
	ScopeNode    Scope = "node"    // all callers of one mount
)

// Scopes lists the scopes.
var Scopes = []Scope{ScopeAuto, ScopeHandle, ScopeProcess, ScopePod, ScopeNode}

// NeedsHostPIDs reports whether the scope tells callers apart by their
// processes, which the kernel names truthfully only in the host's PID namespace.
func (s Scope) NeedsHostPIDs() bool {
	return s == ScopeAuto || s == ScopeProcess || s == ScopePod
}

// list names words for a message.
func list[T ~string](words []T) string {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}
