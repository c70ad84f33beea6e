package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// commits counts what the lock service writes, by the fencing tokens of files that are made before
// and after.
type commits struct {
	sum    int64
	probes int
	from   int64 // revision
	err    error
}

func (c *commits) begin(dir string) { c.from = c.probe(dir) }

func (c *commits) end(dir string) {
	const ofProbes = 2 // the first one's release, and the second one's lock
	c.sum += max(0, c.probe(dir)-c.from-ofProbes)
}

// probe makes a file in the root, which is never delegated, and returns the revision of its lock.
func (c *commits) probe(dir string) int64 {
	name := filepath.Join(dir, fmt.Sprintf("probe-%d-%d", os.Getpid(), c.probes))
	c.probes++
	fd, err := unix.Open(name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return 0
	}
	defer unix.Close(fd)
	buf := make([]byte, 32)
	n, err := unix.Fgetxattr(fd, "user.lockfs.token", buf)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return 0
	}
	token, err := strconv.ParseInt(string(buf[:n]), 10, 64)
	c.err = errors.Join(c.err, err)
	return token / lockmgr.FencingToken(1, 0)
}
