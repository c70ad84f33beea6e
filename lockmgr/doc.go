// Package lockmgr decides who may write: it queues the owners of one mount for
// the locks of a volume, and keeps what they hold in a lock service.
//
//	fs ──Acquire──► Manager ──one entry a key──► Session (Backend: etcd, memory)
//	 ▲                 │ slots: one queue a key         │
//	 └── Hold ◄────────┘                                │ kept alive by renew
//	      │  Check: may this be written now?            │
//	      └──────── loss, with its cause ◄──────────────┘
//
// # An acquisition
//
//	          another owner is in the way         locks are missing
//	waiting ◄───────────────────────── checking ───────────────────► asking the service
//	 pause  ─────────────────────────► checkLocal ◄───────────────── ask, obtain
//	                  woken                │           granted
//	                                       │ it has all locks
//	                                       ▼
//	                                is the session good? ──── lost ───► begins anew
//	                                Hold.Check, Hold.Await
//	                                       │ yes
//	                                       ▼
//	                                     Hold ──────── Release, loss ───► void
//
// Acquire begins attempts. An attempt is one stay in the lines of its keys on this
// mount. collect is the part of an attempt from checking to having all locks. Waiting
// and asking end with an error when the wait is over, or the service refuses.
//
// # Failure model
//
// The service may not answer, may answer late, or may report a failure of what it has
// carried out. A mount may be cut off, frozen for hours and thawed, or killed. Entries may
// be deleted by hand. Clocks may be set, but do not run apart by more than renew allows for.
//
// Three facts together allow a write, and nothing else does: the entry was seen
// live in the service, a renewal that was sent less than TTL − margin ago was
// answered, and the hold was never lost. Hold.Check knows all three. What is lost
// stays lost: a Hold never becomes good again, nothing joins its lock, and an owner that
// still wants the file opens it again.
//
// # Queues
//
// An owner's handles share one lock. It is released with the last of them. Shared locks of
// several owners can be held at a time, each with an entry of its own.
//
// The owners of one mount queue in the Manager, in order of arrival. One of them at a time
// stands in line in the service, or several that share. So a mount counts as one among the
// mounts, however many writers it has. A request that arrived under a lock of the kernel's
// does not queue, see Request.Queue.
package lockmgr
