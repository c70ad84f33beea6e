// Command locks measures what locks cost in etcd, and in Leases of Kubernetes.
//
//	go run ./bench/locks                       everything, some fourteen minutes
//	go run ./bench/locks -short                a look, two minutes
//	go run ./bench/locks -rows '^cycle, 1'     some rows
//	go run ./bench/locks -dir /var/tmp         etcd's files on a disk, not in memory
//	go run ./bench/locks -rows '64 callers' -systems lockfs -cpuprofile cpu
//	                                           where our own time goes
//
// It starts the etcd it needs, of one member and then of three, as processes of
// their own on loopback.
//
// # What is compared
//
//	lockfs      the Manager of a mount over etcdlock, as the view uses it with --keep 0
//	keeping     the same with --keep, in the rows of kept locks
//	session     an etcdlock session alone, below the Manager
//	txn         what no lock can do without: a Txn that puts a key if it is absent, one
//	            that deletes it if it is still ours, on a lease, with the same value
//	mutex       etcd's concurrency.Mutex; for cycles all callers share a session, elsewhere
//	            each has its own
//	leases      a lease for each lock: granted, the key put, revoked
//	kubernetes  the Manager of a mount over kubelease, in the rows "Leases": in the API
//	            server that $KUBECONFIG names, or one of this run's own ('make apiserver'
//	            builds it), or left out
//	kernel, local, rule
//	            in the row "flock, a pair": locks of the kernel alone, those of a view with
//	            --flock local, and those that a rule (flock=local) leaves to the mount;
//	            lockfs is a view with --flock cluster there. Without FUSE it is left out
//
// # What is measured
//
//	cycle     acquire and release, each caller its own key, so that nobody waits; as many
//	          callers as the row says, on one connection
//	handoff   from the holder's release to the next one's grant, with a constant number
//	          of waiters, each a mount with a connection and a session of its own
//	recall    from the request of another mount to its grant: of a file whose lock a mount
//	          keeps, beside a handoff; of a file in a delegated directory, and the
//	          commits meanwhile; the files below stay open
//	ping-pong two mounts that have one file in turn, three opens each
//	kept      the CPU of idle locks that mounts keep, over mounts without locks
//	takeover  from kill -9 of the holder's process to the waiter's grant: when the lease
//	          has ended, and when a successor has proved the holder dead
//	flock     a lock of flock(2) or fcntl(2) and its unlock, by system calls, of a file that
//	          nobody else locks; and a handoff of such a lock between mounts
//	held      what locks cost that are just held: CPU over that of an idle mount,
//	          memory, and how long one more takes
//
// # How to read it
//
// A machine that does other work gives each second another speed. So the systems
// take turns within each round, a figure is the median of the rounds, and a
// ratio is the median of the rounds' ratios: of figures taken moments apart.
// The load and etcd share the machine's cores: ratios say something about others,
// figures do not. CPU times are the kernel's accounts of our process, and of all
// members of etcd together.
//
// Rates (/s) are better when larger, everything else when smaller; a ratio is
// lockfs over the other. The targets are in docs/PERFORMANCE.md; no test
// asserts them.
//
// # Structure
//
//	main ─► for 1 and 3 members: cluster ─► for each row, round, system: measure ─► table, targets
//	          └ this program as a member of etcd, as a holder that is killed, and as a view
//
// The hidden modes, member, holder and view, are chosen by the environment, so
// that the test binary has them too.
package main
