// Package embedetcd is the lock service of mounts without one: one etcd per SOURCE
// directory, on this machine, which nobody has to start or stop.
//
//	mount A ──Start──► takes flock ──starts──► lockfs-etcd (serves, holds the flock)
//	mount B ──Start──► flock taken ── joins ──►  │ client.sock
//	mount C ──Start──► flock taken ── joins ──►  │
//
//	A ends ──► its lockfs-etcd ends ──► the kernel drops the flock
//	       ──► B or C takes it, starts lockfs-etcd on the same data
//
// # Who serves
//
// The process that holds flock(LOCK_EX) on Dir/lock. The descriptor is handed
// to the etcd process, which alone keeps it: the flock is free when, and only
// when, nobody has the data open any more, however that process ended. All
// mounts of a SOURCE use one Endpoint, whoever serves it.
//
// The process also holds a flock on SOURCE. Another user, or another state
// directory, would be another Dir, and so another service that excludes nobody
// of this one: it is refused.
//
// # Why etcd is a process of its own
//
// A mount that serves starts its own executable again under the name
// lockfs-etcd. etcd calls os.Exit when its disk is full or its data damaged;
// inside the mount that would end the mount, and then every other mount that
// takes over. And a frozen mount (SIGSTOP, Ctrl-Z) must not freeze the lock
// service with it: its lease has to run out so that the others go on.
// The process has a session of its own, so that a Ctrl-C meant for the mount
// does not reach it, and ignores SIGTERM, which systemd sends to all of a unit:
// the mount still needs it to release its locks. It ends with the mount, by
// the end of file on a pipe that only the mount has. A mount that is handed on
// to another process, in an upgrade, hands the pipe on (Lend).
//
// # Failures
//
//   - The mount that serves ends (exit, kill -9, panic): clients see
//     Unavailable, a successor answers after about 0.2 s. etcd syncs
//     what it has acknowledged, so every lease, entry and revision is there;
//     leases start their TTL again. A power cut loses nothing either: fsync
//     stays on.
//   - The etcd process alone ends: the same, and its own mount may take over.
//   - etcd cannot start (disk full, damaged data, no memory): Start returns an
//     *ExitError; later on it is logged and tried again, with backoff, by every
//     mount. Locks are not granted meanwhile.
//   - The etcd process hangs (its disk does): nobody takes over, because it
//     still has the data. Clients run into their deadlines.
//   - The machine restarts: the data of the last boot is used again. Leases of
//     mounts that are no more expire one TTL after the first start.
//
// # Size
//
// It has no operator, so it limits its files itself, once a second. A database of 64 MiB
// drops its history and frees the space. The log goes back to the last snapshot but one;
// a snapshot is made every 500 requests. At its quota, 256 MiB, the database accepts
// nothing new until that has made room, which ends the alarm.
//
// # Security
//
// Only unix sockets, never TCP: Dir has mode 0700 and the socket 0600. There
// is no peer listener at all: etcd would put one for a unix URL with a path
// into the abstract namespace, where every local user may connect.
package embedetcd
