// Package kubelease keeps the locks of a volume in Lease objects of Kubernetes,
// for clusters that offer no etcd. It is coarser and slower than etcdlock.
//
//	lockfs-<volume>-file-<hash>      the lock of a path
//	lockfs-<volume>-inode-<hash>     the lock of a file of several names
//	lockfs-<volume>-tree             the locks of all directories
//	lockfs-<volume>-session-<uuid>   a mount; deleted at its end
//	lockfs-<volume>-pulse-<uuid>     what that mount renews
//	lockfs-<volume>-volume           what the mounts of a volume agree on
//	lockfs-<volume>-break-<uuid>     a lock to be given up: whose, by whom, why
//	lockfs-<volume>-janitor          who cleans up, elected
//
// <volume> is the beginning of a hash of the volume's namespace and name, and a
// label. A lock's Lease has its path, or number, in the annotation lockfs.io/key, and in
// lockfs.io/entries who holds it and who waits for it, as JSON, in order of arrival. The
// first of them is the holderIdentity, its session a label; leaseTransitions
// counts them all. There is no ownerReference: what an object's deletion takes along
// is nothing that a lock may depend on.
//
// # One line for each lock
//
// To acquire is to append an entry to a Lease, to release is to remove it, each by
// one Update that names the resourceVersion it replaces, or by a Create. An entry is
// granted when no conflicting entry stands before it whose session lives, and
// stays granted while it stands itself. So a lock is handed on by the release alone:
// who is next sees it. The token is the resourceVersion of the write that put the
// entry. It is a revision of the API server's store: later writes have larger ones
// (docs/adr/0006).
//
// A file and a directory above it are in different Leases, and no request writes
// or reads both. Whoever wants either puts an entry first and then looks at the other,
// as of its own write or later. Of two at least one sees the other, and it is always
// the directory that gives way: a request for one is withdrawn if any file below has
// an entry, a file's waits while a directory above has one (docs/adr/0007).
//
// Several keys are put in an order that all share, that of the Leases' names. Who
// queues waits in one line before it enters the next.
//
// # One watch
//
// A mount has one watch of all the volume's Leases but the pulses. Events come in order
// of revision, so the copy that they make, the mirror, is at any time the state at one
// revision, or newer in parts. When it has shown a mount's own write, it has shown all
// before it: that is the look at the other Leases, and costs no request. If the
// watch is late or down, all are read instead. A watch that ended goes on where it was,
// when the server is back; all are read again only if it does not know that any more.
//
// What the mirror knows also saves the read before a write: if it was behind, the
// write is refused, and repeated with what the server has. It never decides that a
// lock is taken when the caller does not wait: that is read.
//
// # Sessions
//
// A session lives while its Lease exists. What is renewed is another, its pulse, by
// an Update that changes renewTime; nobody reads the time. A keeper notes, by its own
// clock, when it saw a pulse change, and deletes it once it has not for as long as the
// Lease itself says, on condition that it is still the version that was seen. So a
// renewal and the end exclude each other, whatever either believes of the time. The
// mount's own deadline counts from when it sent the renewal, which is earlier than
// anybody can have seen it: the pulse can only go after that, and the session goes after
// the pulse, so that no mount renews a session that has ended. While the server
// answers nobody, no session can be renewed, and so none is ended: after a request of a
// keeper that failed, the time between the last sign of the server and the next does
// not count. At its end its entries count for nothing, and are removed by whoever
// writes the Lease next.
//
// The keepers are three mounts at a time, which watch the pulses of all (docs/adr/0024).
// They say so by renewing the Lease of their session as well, for all to see. A mount
// that has seen fewer for two renewals becomes one, after a pause that differs from
// mount to mount; if there are more, the youngest stop. So a renewal is an event for
// three mounts, and not for all. Which mounts are keepers decides nothing about a lock:
// two may end the same session, and while there is none, none ends.
//
// A dead mount's request may still arrive, and even put an entry. It stands for a
// session that is no more, ids are never used again, and so keeps nobody out; and
// the mount is past its deadline, and writes nothing on the strength of it.
//
// A reading of all Leases, or a renewal, at a revision before one that was seen is of
// an etcd that was restored. So is one which has an older version of a Lease than was
// seen: revisions may have been made to go on from a later one. It does not know what it has granted since, but may well know the
// session. So all sessions end, and the mirror begins an era: answers to what was
// asked in another tell it nothing.
//
// # What an error means
//
// A write that was not answered may have been carried out, or may yet be. Each is
// conditional on one version of one Lease, so it is settled by reading the Lease: our
// entry, whose owner's id is unique, is there; or the version has moved on, and the
// write is void; or it has not, and the same write is sent again, or another in its
// place which makes it void. What cannot be read is taken by nobody. Behind this
// stands, as in etcdlock, a look every now and then for entries of the own session
// that nobody here knows of.
//
// The janitor deletes the Leases of locks that have been free for an hour, and
// those of breaks after a day, on condition that they have not changed since. It is
// elected with client-go's leaderelection to save requests only.
//
// # Costs
//
// Acquire and release are one write each; nothing is asked while a lock is held. A
// waiter costs its entry, and the handoff nothing more. Renewals are one write every
// fifth of the TTL for each mount. Each mount is told of every write but those. See
// docs/KUBERNETES.md for figures, and for what QPS and Burst have to be.
//
// Nothing here decides whether a holder may still write: that is the business of
// the clock that watches the session's deadline.
package kubelease
