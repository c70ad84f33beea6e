package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A tracepoint of the kernel shows the round trips to the daemon (Linux 6.12), in a tracefs
// instance of the bench's own, because others may trace too.

// traced is how long the requests of a rate are counted: the buffer is bounded.
const traced = 50 * time.Millisecond

// countRequests prints each row's requests of one system call, or of the whole program.
func (b *bench) countRequests(ctx context.Context) error {
	trace, stop, err := startTrace(b.tmp)
	if err != nil {
		return fmt.Errorf("-requests: %w", err)
	}
	defer stop()
	for _, r := range b.opts.rows {
		for _, s := range b.systems {
			if s.cmd == nil {
				continue
			}
			out, err := b.work(ctx, r, s, job{Each: traced, Count: trace})
			if err != nil {
				return fmt.Errorf("%s on %s: %w", r.name, s.name, err)
			}
			names := slices.SortedFunc(maps.Keys(out.Requests), func(x, y string) int {
				return int(out.Requests[y]) - int(out.Requests[x])
			})
			var text []string
			for _, n := range names {
				text = append(text, fmt.Sprintf("%s %.2f", n, out.Requests[n]/float64(out.Ops)))
			}
			fmt.Printf("%-19s %-9s %s\n", r.name, s.name, strings.Join(text, ", "))
		}
	}
	return nil
}

// startTrace mounts a tracefs below tmp, and returns its instance's directory.
func startTrace(tmp string) (dir string, stop func(), err error) {
	root := filepath.Join(tmp, "tracefs")
	if err := os.Mkdir(root, 0o700); err != nil {
		return "", nil, err
	}
	if err := unix.Mount("none", root, "tracefs", 0, ""); err != nil {
		return "", nil, fmt.Errorf("mount tracefs: %w", err)
	}
	dir = filepath.Join(root, "instances", filepath.Base(tmp))
	event := filepath.Join(dir, "events/fuse/fuse_request_send/enable")
	stop = func() {
		_ = os.WriteFile(event, []byte("0"), 0)
		_ = unix.Rmdir(dir)
		_ = unix.Unmount(root, unix.MNT_DETACH)
	}
	err = errors.Join(
		os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, "buffer_size_kb"), []byte("16384"), 0), // a CPU: some 200,000 requests
		os.WriteFile(event, []byte("1"), 0))
	if err != nil {
		stop()
		return "", nil, fmt.Errorf("trace requests (needs Linux 6.12): %w", err)
	}
	return dir, stop, nil
}

func clearTrace(trace string) error { return os.WriteFile(filepath.Join(trace, "trace"), nil, 0) }

var requestLine = regexp.MustCompile(`connection (\d+) req \d+ opcode \d+ \(FUSE_(\w+)\)`)

// addTraced adds the recorded requests of dir's mount.
func addTraced(trace, dir string, to map[string]float64) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(trace, "trace"))
	if err != nil {
		return err
	}
	defer f.Close()
	connection := strconv.Itoa(int(unix.Minor(st.Dev)))
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if m := requestLine.FindStringSubmatch(lines.Text()); m != nil && m[1] == connection {
			to[m[2]]++
		}
	}
	return lines.Err()
}
