package procid

import (
	"bytes"
	"errors"
	"fmt"
)

// stat is what is used of a /proc/<pid>/stat.
type stat struct {
	comm    string
	ppid    int
	flags   uint64 // PF_EXITING and others
	threads uint64 // of the process, including a main thread that has exited
	start   uint64 // clock ticks after boot
}

// The fields of stat, counted from 0 after the comm; proc_pid_stat(5) counts
// from 1 with two before.
const (
	fieldPPID    = 4 - 3
	fieldFlags   = 9 - 3
	fieldThreads = 20 - 3
	fieldStart   = 22 - 3
)

// parseStat parses "pid (comm) state ppid …". A comm may contain anything,
// parentheses, spaces and newlines too, but only numbers follow it.
func parseStat(b []byte) (stat, error) {
	open, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 0 || end < open {
		return stat{}, errors.New("no (comm)")
	}
	st := stat{comm: string(b[open+1 : end])}
	rest := b[end+1:]
	for i := 0; i <= fieldStart; i++ {
		rest = bytes.TrimPrefix(rest, []byte{' '})
		var f []byte
		f, rest, _ = bytes.Cut(rest, []byte{' '})
		if i != fieldPPID && i != fieldFlags && i != fieldThreads && i != fieldStart {
			continue
		}
		n, ok := parseUint(f)
		if !ok {
			return stat{}, fmt.Errorf("field %d is %q", i+3, string(f))
		}
		switch i {
		case fieldPPID:
			st.ppid = int(n)
		case fieldFlags:
			st.flags = n
		case fieldThreads:
			st.threads = n
		case fieldStart:
			st.start = n
		}
	}
	return st, nil
}

// parseUint is strconv.ParseUint of base 10, for bytes.
func parseUint(b []byte) (n uint64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + uint64(c-'0')
	}
	return n, len(b) > 0
}
