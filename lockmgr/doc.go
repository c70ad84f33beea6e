// Package lockmgr decides who may write. It queues the owners of one mount for the
// locks of a volume, and keeps the locks that they hold in a lock service.
//
//	fs ──Acquire──► Manager ──one entry a key──► Session (Backend: etcd, Leases)
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
// Acquire makes attempts until one has all locks. During an attempt the request stands
// in the lines of its keys on this mount. collect is the part from checking to having all
// locks. Waiting and asking end with an error when the wait is over, or when the service
// refuses.
//
// # Failure model
//
// The service might not answer, might answer late, or might report a failure although it
// has carried the request out. A mount can be cut off, frozen for hours and thawed, or
// killed. Entries can be deleted by hand. Clocks can be set, but their rates differ by no
// more than renew allows for.
//
// A write is allowed only if three facts hold: the entry was seen live in the service, a
// renewal that was sent less than TTL − margin ago was answered, and the hold was never
// lost. Hold.Check checks all three. A loss is final: a Hold never becomes good again, and
// nothing joins its lock. An owner that still wants the file opens it again.
//
// # Queues
//
// An owner's handles share one lock, which is released with the last of them. Shared locks
// of several owners can be held at the same time, each with an entry of its own.
//
// The owners of one mount queue in the Manager, in order of arrival. Only the first of them
// stands in line in the service, or the first several if they share. So in the service's
// line each mount counts once, however many writers it has. A request that arrived under a
// lock of the kernel does not queue, see Request.Queue.
package lockmgr
