// Package etcdlock keeps the locks of a volume in etcd.
//
//	/locks/<ns>/<name>/<path>//w/<uuid>         entry of a file: holder or waiter
//	/locks/<ns>/<name>/<path>//r/<uuid>         the same, shared with other r
//	/lockfs/<ns>/<name>/tree/<dir>//w/<uuid>    entry of a directory and all below it
//	/lockfs/<ns>/<name>/inode/<ino>//w/<uuid>   entry of a file of several names, or r
//	/lockfs/<ns>/<name>/epoch                   put with every directory entry
//	/lockfs/<ns>/<name>/session/<sid>           a mount; sid is its lease in hex
//	/lockfs/<ns>/<name>/volume                  what the mounts of a volume agree on
//	/lockfs/<ns>/<name>/break/<uuid>            a lock to be given up: whose, by whom, why
//
// Entries and session records are on the session's lease, a break is on one of a
// day; epoch and volume are on none and are never deleted. The entries of one path are ordered by create
// revision, which is also the fencing token. An entry is granted when no
// conflicting entry with a smaller create revision lives, and stays granted
// while it lives itself. An owner that shares a path and wants it for itself
// alone puts a w beside its r, which it does not wait for; if another w stands
// ahead, that one waits for the r, and the owner is refused.
//
// # One commit
//
// An acquisition is one Txn:
//
//	If    nothing under <path>// (to share: under <path>//w/), epoch and fence unchanged
//	Then  Put
//	Else  Get the entries, the directory entries, the epoch; and Put: to queue in
//	      any case, else if nothing conflicts, compared directory by directory
//
// Directory entries above a path are many ranges to compare. The
// backend keeps a copy of them, read together with the epoch: while the epoch
// stands, the copy lacks none. An entry of the copy that conflicts makes the
// optimistic branch fail, for the answer to tell whether it still lives. An epoch
// that moved for a directory elsewhere costs the comparisons, and no second Txn:
// else mounts that remove directories would starve each other, and those who
// create files. Of requests with too many directories above them one wins each
// time; the others pause, longer and longer, and are told of contention.
//
// Each session sends one such Txn, or release, at a time. What its callers ask
// for meanwhile goes into the next, as nested Txns, as far as they cannot stand in
// each other's way; they get one create revision then.
//
// # Waiting
//
// A waiter watches for deletes from now on and reads once if the watch began
// later than what it knows. It never watches from a past revision: etcd serves
// such a watch from a loop that runs every 100 ms. Who is next sees all deletes of
// the path; who stands far back in line sees that of one entry some way ahead,
// and looks again. A watch that ends, for
// compaction or want of a leader, is begun again in the same way. Backoff is for
// errors only.
//
// # What an error means
//
// A Txn that failed may have been carried out, or may yet be: by a member that
// was frozen, or whose link to the leader heals later. So every Put of a session
// compares the revision of the session record, and the Txn that repeats an
// unanswered acquisition, or cleans it up, puts the record again (the fence).
// From then on nothing sent earlier can take effect, and our own key, unique to
// the acquisition, says whether it did. Without it a late Put would leave an
// entry that nobody knows of and that blocks all others until the mount ends.
//
// A request that takes long is not repeated for that: a service that has much to do
// would do both. It is given up when one that was sent later was answered, and a
// mount sends a read to find out, see pulse. What an Acquire that has ended left
// under way is waited for, and deleted if the answer says that it stands.
//
// Behind this stand two that should find nothing. Who looks whether the session's
// entries stand deletes what is on its lease and claimed by nobody here; and of all
// mounts the oldest deletes entries that are on no lease.
//
// An etcd whose revision is smaller than it has been was set back: restored from
// a snapshot, or emptied. All sessions end, though their leases may be there.
//
// Nothing here decides whether a holder may still write: that is the business of
// the clock that watches the session's deadline. A lock service that is
// partitioned away grants nothing and renews nothing, and waits go on.
package etcdlock
