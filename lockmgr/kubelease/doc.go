// Package kubelease keeps the locks of a volume in Lease objects of Kubernetes,
// for clusters that offer no etcd. It is coarser and slower than etcdlock.
//
//	lockfs-<volume>-file-<hash>      the lock of a path
//	lockfs-<volume>-inode-<hash>     the lock of a file of several names
//	lockfs-<volume>-tree             the locks of all directories
//	lockfs-<volume>-advisory-<hash>  the flock and fcntl locks of a file
//	lockfs-<volume>-session-<uuid>   a mount; deleted at its end
//	lockfs-<volume>-pulse-<uuid>     what that mount renews
//	lockfs-<volume>-volume           what the mounts of a volume agree on
//	lockfs-<volume>-service          its UID is the id of this lock service
//	lockfs-<volume>-break-<uuid>     an operator's order to give up a lock, and the reason
//	lockfs-<volume>-janitor          the elected mount that cleans up
//
// <volume> is the beginning of a hash of the volume's namespace and name, and a label.
// The Lease of a lock has these annotations: lockfs.io/key is its path, or number;
// lockfs.io/entries lists, as JSON and in order of arrival, its holders and waiters.
// The first entry is the holderIdentity, and its session a label. leaseTransitions
// counts all entries there have been. There is no ownerReference: no lock may depend on
// the deletion of another object.
//
// # One line for each lock
//
// To acquire is to append an entry to a Lease. To release is to remove it. Each is one
// Update that names the resourceVersion it replaces, or a Create. An entry is granted when
// no conflicting entry stands before it whose session lives. It stays granted while it
// stands itself. So the release alone hands a lock on: whoever is next sees it. The token
// is the resourceVersion of the write that put the entry. It is a revision of the API
// server's store: later writes have larger ones (docs/adr/0006).
//
// A file and a directory above it are in different Leases, and no request to the server can read or
// write both. So a request for either lock puts its entry first, and then looks at the other Lease,
// in a state that is no older than its own write. Of two such requests at least one sees the other.
// The directory always gives way: a request for a directory is withdrawn if any file below has an
// entry, and a request for a file waits while a directory above has one (docs/adr/0007).
//
// Several keys are put in one order for all mounts, that of the Leases' names. A request
// that queues waits in one line before it enters the next.
//
// # Kept locks
//
// The entry of a lock that its mount may keep says so. Whoever is in line behind it recalls
// it: the mirror of the mount that keeps it shows who waits, and the recall costs nothing. A
// request that puts no entry while something is in its way notes its recall in the Lease, by
// one Update; for a directory, in the Lease of each file below. The note goes with the entry
// that it names. If it goes before the entry, the entry is in use: that is the answer to a
// request that does not wait. A Lease that shows recalls has a label. So one list, a second,
// tells a mount whose watch hangs what it has to give back.
//
// # Delegated directories
//
// A delegated directory is an entry of mode k in the Lease of the directories. The delegation and a
// file's entry below it are in two Leases. Whoever puts either one looks at the other Lease
// afterwards. A delegation gives way to an entry of another session. An entry of a file was put too
// late if a delegation stands in its way when the mirror shows the entry, or if one has gone since
// the entry was put. It is then put anew. To make that visible, the Lease of the directories has
// the revision at which the last delegation went, and is never deleted (docs/adr/0039).
//
// # Tables of flock and fcntl locks
//
// The rows of a file's table are in one Lease. A change of rows is one write, on condition of the
// version that was read. A row counts while its session lives (docs/adr/0065).
//
// # One watch
//
// A mount has one watch of all the volume's Leases but the pulses. Events come in order of
// revision, so the copy that they make, the mirror, is at any time the state at one
// revision, or newer in parts. When the mirror shows a mount's own write, it shows all
// writes before it. That is the look at the other Leases, and it costs no request. If the
// watch is late or down, all Leases are read instead. A watch that ended goes on where it
// was when the server is back. All are read again only if the server does not know that
// revision any more.
//
// The mirror also saves the read before a write: if the mirror was behind, the write is
// refused, and repeated with what the server has. The mirror alone never refuses a request
// that does not wait: the Lease is read first.
//
// # Sessions
//
// A session lives while its Lease exists. What is renewed is another Lease, its pulse, by an Update
// that changes renewTime. Nobody reads that time. A keeper notes, by its own clock, when it saw a
// pulse change. It deletes the pulse when it has seen no change for as long as the Lease itself
// says, on condition that it is still the version that was seen. So of a renewal and the deletion
// only one succeeds, whatever the two clocks say.
//
// The mount's own deadline counts from when it sent the renewal. A keeper can only have seen the
// renewal later than that. The pulse can only go after that deadline, and the session goes after
// the pulse: no mount renews a session that has ended. The entries of a session that has ended
// count for nothing, and are removed by whoever writes the Lease next.
//
// While the server answers nobody, no session can be renewed, and so none is ended. After
// a keeper's request failed, the time between the last sign of the server and the next
// does not count.
//
// The keepers are three mounts at a time, which watch the pulses of all (docs/adr/0024).
// They show it by renewing the Lease of their session as well. A mount that has seen fewer
// keepers for two renewals becomes one, after a pause that differs from mount to mount. If
// there are more, the youngest stop. So a renewal is an event for three mounts, and not for
// all. Which mounts are keepers decides nothing about a lock: two may end the same session,
// and while there is none, no session ends.
//
// A dead mount's request may still arrive, and even put an entry. Its session is gone, and ids are
// never used again, so the entry keeps nobody out. The mount itself is past its deadline, and
// writes nothing because of that entry.
//
// # A store that was set back
//
// An etcd that was restored does not know what it has granted since, but may well know the session.
// Two signs show it. All Leases, or a renewal, are read at a smaller revision than was seen before.
// Or one Lease has an older version than was seen before: the restored store may count on from a
// larger revision. Then all sessions end, and the mirror begins an era: answers to what was asked
// in another era tell it nothing.
//
// # Handed on
//
// A session that another process continues keeps its Leases and its entries. The former process
// stops its writes, all but renewals, and voids those that were not answered, by a write of its own.
// Then nothing of it can arrive late. The next process removes the session's entries that it does
// not claim (docs/adr/0050). A process that dies leaves a record of each write that was not answered,
// and the next one voids it (docs/adr/0070).
//
// # What an error means
//
// A write that was not answered may have been carried out, or may yet be. Each is conditional on
// one version of one Lease, so reading the Lease settles it. If our entry is there, whose
// acquisition's id is unique, the write was carried out. If the version has moved on without it,
// the write is void. Otherwise the same write is sent again, or another in its place, which makes
// it void. Nobody gets a lock whose Lease cannot be read. As in etcdlock, each session also checks
// now and then for entries of its own that nobody here claims. It should find none.
//
// A break that is withdrawn leaves its Lease, without the break. A Create that arrives late is refused.
//
// The janitor deletes the Leases of files' locks that have been free for an hour, and those of
// breaks after a day, on condition that they have not changed since. It is elected with
// client-go's leaderelection, to save requests only.
//
// # Costs
//
// Acquire and release are one write each. Nothing is asked while a lock is held. A waiter
// costs its entry, and the handoff nothing more. Renewals are one write every fifth of the
// TTL for each mount. Each mount is told of every write but those. See docs/KUBERNETES.md
// for figures, and for what QPS and Burst have to be.
//
// Nothing here decides whether a holder may still write: that is the business of the
// clock that watches the session's deadline.
package kubelease
