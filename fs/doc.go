// Package fs is the view: a FUSE file system over a shared directory in which
// opening a file for write takes a cluster-wide lock.
//
// # Failure model
//
// The directory (the backing) is changed by other nodes at any time. A path
// the kernel looked up names another file a moment later, a parent is renamed,
// a name becomes a symlink. So nothing is done by path: each inode the kernel
// knows has one O_PATH descriptor, and every call is made relative to one. The
// single use of a path is as a lock's key, and after a lock was granted the
// path is resolved again, beneath the root and through no symlink: a grant is
// for a path, an open is of an inode, and only while both agree is the backing
// touched. If they do not agree the kernel is told ESTALE and looks again.
//
// The lock may be lost while a file is open. A handle that writes asks its
// hold before every change, and again after it; once the hold is lost the handle
// answers EIO for ever, and the node id it was opened on is retired, so that
// the kernel cannot send its dirty pages through another's handle.
//
// # What may wait
//
//	OPEN               queues for the lock, arrives without any kernel lock
//	WRITE, FALLOCATE   wait while the session is suspended, bounded, killable
//	all others         try; they arrive under the kernel's lock on the directory
//	                   or the file, and while one of them waits the holder
//	                   itself cannot write or close
//
// # Structure
//
//	kernel ─► FS (one method a request) ─► lockmgr.Manager ─► lock service
//	             │ callers  who asks: process, container, pod, owner
//	             │ files    which file has which name: prove.go
//	             │  │ nodes    node id → descriptor, name, what the kernel was told
//	             │  └ backing  the shared directory
//	             │ handles  handle → descriptor, hold
//	             └ visits   threads sent to look again, and locks granted to them
//
// LOCK ORDERING: held.naming, nodes.mu, node.mu and held.mu. But for the first none is held across
// a system call that may block, none across a call of the Manager that may wait.
package fs
