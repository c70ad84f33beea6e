// Package etcdlock keeps the locks of a volume in etcd.
//
//	/locks/<ns>/<name>/<path>//w/<uuid>         entry of a file: holder or waiter
//	/locks/<ns>/<name>/<path>//r/<uuid>         the same, shared with other readers
//	/lockfs/<ns>/<name>/tree/<dir>//w/<uuid>    entry of a directory and all below it
//	/lockfs/<ns>/<name>/tree/<dir>//k/<uuid>    the same, delegated to a mount
//	/lockfs/<ns>/<name>/inode/<ino>//w/<uuid>   entry of a file of several names, or r
//	/lockfs/<ns>/<name>/stamp/<hash>            put with every entry of a directory, see stamps
//	/lockfs/<ns>/<name>/session/<sid>           a mount; sid is its lease in hex, see below
//	/lockfs/<ns>/<name>/volume                  what the mounts of a volume agree on
//	/lockfs/<ns>/<name>/service                 the id of this etcd
//	/lockfs/<ns>/<name>/break/<uuid>            an operator's order to give up a lock, and the reason
//	/lockfs/<ns>/<name>/recall/<mount>/<uuid>   kept entries of a mount that a request waits for
//	/lockfs/<ns>/<name>/advisory/<ino>//<row>   flock and fcntl locks of a mount
//
// Entries, session records, recalls and rows of advisory locks are on the session's lease. A
// break is on a lease of one day. Stamps, volume and service are on no lease and are never
// deleted.
//
// The entries of one path are ordered by create revision, which is also the fencing
// token. An entry is granted when no conflicting entry with a smaller create revision
// lives. It stays granted while it lives itself.
//
// The leases of a mount's sessions begin with the same 8 hex digits, which the mount has drawn:
// <mount>.
//
// To upgrade, an owner puts a w entry beside its own r entry, and does not wait for that.
// If another w entry stands ahead, it waits for the r entry: the upgrade is refused.
//
// # One commit
//
// An acquisition is one Txn:
//
//	If    nothing under <path>// (to share: under <path>//w/), no entry of each directory
//	      above, fence unchanged
//	Then  Put; Get the stamps
//	Else  Get the entries and the stamps; and, to queue, Put if no directory above is delegated
//
// A delegation is put if all entries below the directory are on the session's lease, or none
// is there. What the session asks for leaves its own delegations out of what it compares and
// reads. Any other session puts nothing while one stands in its way, not even in line.
//
// The stamps of the directories above tell whether one was locked between two grants: see
// Undisturbed.
//
// If the directories above are too many for one Txn, it compares instead that no directory entry at
// all was put since the last answer. Such a request may be outrun by others. It tries again with
// growing pauses, and is told of contention in the end.
//
// Each session sends one such Txn, or release, at a time. What its callers ask for
// meanwhile goes into the next, as nested Txns, as far as they cannot stand in each
// other's way. They get one create revision then.
//
// # Watching
//
// A mount watches three prefixes: breaks, the recalls for it, and the records of its sessions.
// One goroutine reads them, see mountWatch. Each time the watches are begun, when somebody begins
// to listen, and now and then, it also reads what stands. Held locks are not watched: a mount
// asks what is on its leases (docs/adr/0018).
//
// # Waiting
//
// A waiter watches for deletes from now on. It reads once if the watch began later than
// what it knows. It never watches from a past revision: etcd serves such a watch from a
// loop that runs every 100 ms. A waiter near the front sees all deletes of the path. A
// waiter further back sees the delete of one entry some way ahead, and then reads again.
// A watch that ends, by a compaction or for want of a leader, is begun again in the same
// way. Backoff is for errors only.
//
// # What an error means
//
// A Txn that failed may have been carried out, or may yet be: by a member that was
// frozen, or whose link to the leader heals later. A late Put would leave an entry that
// nobody knows of, and that blocks all others until the mount ends. So every Put of a
// session compares the revision of the session record. The Txn that repeats an unanswered
// acquisition, or cleans it up, puts the record again: this is the fence. From then on
// nothing that was sent earlier can take effect, and our own key, unique to the
// acquisition, says whether it did.
//
// A request is not repeated because it takes long: a busy service would carry out both.
// It is given up when a request that was sent later was answered. A mount sends a read to
// find out, see liveness. A request that an ended Acquire has left under way is waited for,
// and its entry is deleted if it stands.
//
// Two more checks should find nothing. Each session checks the keys on its lease, and
// deletes entries that nobody here claims. And the oldest mount deletes entries that are on
// no lease.
//
// An etcd whose revision is smaller than it was has been set back: restored from a
// snapshot, or emptied. So has one whose session record is older than a fence that was raised:
// a restored etcd may count on from a later revision. All sessions end, though their leases may
// still be there.
//
// Nothing here decides whether a holder may still write: that is the business of the
// clock that watches the session's deadline. A lock service that is partitioned away
// grants nothing and renews nothing, and waits go on.
package etcdlock
