// Package pods knows what Kubernetes calls the pods of this node, and tells them
// what became of their locks.
//
//	procid: UID, container id ──Name──► namespace/name, container
//	                              ▲
//	     list and watch of the pods of this node
//
//	lockmgr ──Event──► Observer ──queue──► events on pods (kubectl describe pod)
//	serve ──► NotServed ─────────queue──► events on this node (kubectl describe node)
//
// # Failure model
//
// The API server may be slow, away, or refuse. Nothing here waits for it: Name
// answers from memory, and what is not known (yet) has no name; events wait in
// a queue, and those that do not fit are dropped, as are those of one pod, or the node, beyond
// the 25th in a row (one more each five minutes). No lock depends on any of it.
//
// It needs the verbs list and watch of pods, and create and patch of events, in
// all namespaces.
package pods
