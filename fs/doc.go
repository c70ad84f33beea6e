// Package fs is the view: a FUSE file system over a shared directory in which
// opening a file for write takes a cluster-wide lock.
//
// # Failure model
//
// Other machines change the directory (the backing) at any time: a path leads to another file, a
// parent is renamed, a name becomes a symbolic link. So no call is made by path. Each inode
// that the kernel knows has an O_PATH descriptor, and calls are made relative to one. A path
// is only used as a lock's key. When the lock is granted, the path is resolved again, beneath
// the root and through no symbolic link. A grant is for a path, an open is of an inode. If the
// path leads to another inode, the backing is not touched. The kernel gets ESTALE, and looks the
// name up again.
//
// A lock can be lost while a file is open. A handle that writes checks its hold before each
// change, and after it. Once the hold is lost, the handle answers EIO for ever. Its node id is
// retired, so that the kernel cannot send its dirty pages by another handle.
//
// # What may wait
//
//	OPEN               queues for the lock; it arrives without a lock of the kernel's
//	WRITE, FALLOCATE   wait while the session is suspended: bounded, and until SIGKILL
//	all others         try: they arrive under the kernel's lock on the directory or the
//	                   file, without which the holder cannot write or close
//
// # Structure
//
//	kernel ─► connection ─► FS ─► locker ─► lockmgr.Manager ─► lock service
//	                        │       │ callers  who asks: process, container, pod, owner
//	                        │       │ rules    what the policy says of a path
//	                        │       └ files    which file has which name: prove.go
//	                        │          │ nodes    node id → descriptor, name, what the kernel was told
//	                        │          └ backing  the shared directory
//	                        │ actor      acts with a caller's rights
//	                        │ openFiles  handle → descriptor, hold, what is not on the volume yet
//	                        └ visits     threads sent to look again, and locks granted to them
//
// FS has one method for each request of the kernel. In the diagram, a part uses what is right of
// it or below it, and never what is left of it or above it.
//
// LOCK ORDERING: held.naming, nodes.mu, node.mu and held.mu. Only the first is held across a
// system call that may block, and none across a call of the Manager that may wait.
package fs
