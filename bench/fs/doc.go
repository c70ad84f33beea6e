// Command fs measures what the view costs.
//
//	go run ./bench/fs                   everything, some ten minutes
//	go run ./bench/fs -short            a look, under a minute
//	go run ./bench/fs -rows 'create|4k' some rows
//	go run ./bench/fs -requests         what the kernel asks the daemons, per system call
//
// It needs root, and installs nothing: bindfs, git and tar are used if they are
// there.
//
// # What is compared
//
//	ext4      a plain directory of an ext4 that is made for the run, in a file
//	          (-dir says where); the backings of all others are beside it
//	lockfs    the view, with lockfs' own Manager over the in-memory lock service:
//	          what a lock costs in etcd is measured elsewhere
//	loopback  go-fuse's example, from the module that lockfs uses, serving reads and
//	          writes itself
//	bindfs    Debian's
//	passthrough  on demand (-systems): loopback as root runs it, whose reads and writes
//	          go past it to ext4
//	nolock, etcd, kept  on demand: 'lockfs mount' as users run it, with an embedded etcd on that ext4: a
//	          policy without locks, a lock for each open (--keep 0), and locks and directories that
//	          the mount keeps, as by default. To compare: -systems kept,etcd,nolock -of kept.
//	          Of etcd and kept the commits are counted too, for 100 files of a tree, or 100
//	          operations. Another lock service: -mount '--endpoints http://…', -mount '--kubeconfig FILE'
//	supervised  on demand: as kept, with --supervise. To compare: -systems supervised,kept -of supervised
//	other     on demand (-other): the view of another build, say of the last commit
//
// Each has a directory of its own with the same files. Each daemon is a process,
// and the load is another, started anew for each figure and timing only the
// calls in question.
//
// # How to read it
//
// A machine that does other work gives each second another speed. So the
// systems take turns within each round, a figure is the median of the rounds, and a
// ratio is the median of the rounds' ratios: of figures taken moments apart.
// Ratios can be trusted to some 5 %, figures to compare machines cannot.
//
// Rates (MB/s, op/s) are better when larger, and the ratio is lockfs' rate over
// the other's. Times (s) are better when smaller, and the ratio is lockfs' time
// over the other's. The targets are in docs/PERFORMANCE.md; no test asserts
// them.
//
// # Structure
//
//	main ─► start systems ─► for each row, round, system: a worker process ─► table, targets
//	          └ this program as the lockfs daemon (-cpuprofile is its)
//
// The two hidden modes, daemon and worker, are chosen by the environment, so
// that the test binary has them too.
package main
