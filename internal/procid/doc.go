// Package procid tells who a FUSE caller is, from the thread id that the kernel
// sends with each request.
//
//	tid ──/proc/<tid>/status──► tgid ──/proc/<tgid>/stat──► start time, comm
//	  └───/proc/<tid>/cgroup──► pod
//
// # Failure model
//
// A pid names a process only while it lives. The caller's thread lives, and
// with it its process, as long as its request is unanswered: a thread whose
// request the daemon has read cannot even be killed. So what is read while
// a synchronous request is served belongs to the caller. It does not hold for
// requests that nobody waits for (RELEASE, written-back pages), and their tid
// is often 0: ask at OPEN, not there. Beyond a request's life, a process is its
// pid and its start time together.
//
// Thread ids are those of the mount's PID namespace, and /proc has to be of
// the same one: see Proc.InHostPIDNamespace. A daemon in a cgroup namespace of
// its own still sees the pods of others, but takes processes of its own pod for
// processes of none.
//
// A process's name is its own to choose and may contain anything; nothing is
// decided by it.
package procid
