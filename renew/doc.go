// Package renew keeps one lease of a lock service alive and says, at every
// moment, whether a write may still be issued under it.
//
// # Failure model
//
// The service ends the lease TTL after it last extended it, and then grants
// our locks to others. It may be slow, unreachable or restarted; messages are
// delayed, and an error says nothing about what the service did. This process
// may be stopped at any instruction, for any time (SIGSTOP, a freezer cgroup,
// a system suspend), and thaws without noticing. Clocks are never compared
// between machines; their rates differ by at most 1/1000. A virtual machine
// stopped together with its clock is beyond this model.
//
// # The deadline
//
// The service extends a lease some time after a renewal was sent, never
// before. So the lease lives at least until sent + TTL, whenever the answer
// arrives, and a write that is issued before
//
//	deadline = sent + TTL − Margin        on CLOCK_BOOTTIME
//
// lands before anybody else can be granted the lock, if the Margin covers what
// a write may take after its check (see WriteInFlight and CheckToIssue).
//
//	sent     answered                            deadline          sent + TTL
//	──┼─────────┼───────────────────────────────────┼───── Margin ─────┼──►
//	  └────────────── writes are issued ────────────┘  they land       │
//	                                                       others may write
//
// # States
//
//	          deadline passed                 Done, ErrGone, SuspendWait over
//	Held ───────────────────────► Suspended ──────────────────────► Lost
//	 │ ▲                              │                              ▲
//	 │ └──────────────────────────────┘                              │
//	 │   renewal sent since, deadline ahead, Verify                  │
//	 └───────────────────────── Done, ErrGone, Close ────────────────┘
//
// Held and Suspended say what the clock says, even if no goroutine ran since:
// Valid compares the deadline with the clock. Suspended is a pause: the lease
// may live, and if it does, nobody else was granted anything. Lost is final.
//
// # Goroutines
//
// The renewer calls Renew. The monitor watches the clock and Lease.Done, so
// that a Renew that never returns cannot hide expiry. The reporter logs and
// calls Config.OnChange, so that a slow log holds up nobody.
//
// Timers run on CLOCK_MONOTONIC, which stops while the machine sleeps, and so
// may fire late. They only say when to look: whoever looks (the monitor, the
// renewer, State, Await) reads CLOCK_BOOTTIME and moves the state on.
package renew
