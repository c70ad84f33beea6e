package serve

import (
	"log/slog"

	"golang.org/x/sys/unix"
)

// RaiseFileLimit raises the limit of open files: each inode that the kernel knows needs one. Call
// it before Run.
func RaiseFileLimit(log *slog.Logger) {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return
	}
	const want = 1 << 20 // the kernel's own limit, unless fs.nr_open was changed
	if l.Max < want && unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: want, Max: want}) == nil {
		return
	}
	l.Cur = l.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		log.Warn("cannot raise the limit of open files", slog.Any("error", err))
	}
}
