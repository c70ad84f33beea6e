// Package advisory computes with the advisory locks of one file: those of flock(2), and the
// ranges of fcntl(2) that a process (POSIX) or an open file (OFD) has. It asks nobody and keeps
// nothing: lockmgr keeps the locks in a lock service.
//
//	Locks   what owners have: split, merged, upgraded and downgraded as Linux does
//	View    what stands at a moment, of all mounts: who may have a lock, and whose turn it is
//	Cycle   who waits for whom, over all files: EDEADLK
//
// A flock conflicts with flocks only, and a range with ranges only, as on Linux.
//
// # Whose turn it is
//
// A request is free if no lock that another owner has conflicts with it. Of the requests that
// conflict with each other and are free, the one that came first has its turn. A request that
// is not free keeps nobody waiting: Linux has no such rule either, and a program that reads
// twice would wait for a writer that waits for it. So a cycle of waits is always one of locks
// that owners have.
package advisory
