package lab

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// A caching backing is a client of a network volume, as of NFS: each mount has its own, of one
// directory. It believes names and attributes for a minute. It asks again for a file's attributes,
// dropping its pages, at an open; and for a directory's names, when its attributes are asked for
// with AT_STATX_FORCE_SYNC.
//
// A file is opened by what it is. One removed by another client is gone: ESTALE. One removed by
// this client goes on while it is open.

// clientEnv makes the test binary a caching backing, until standard input ends.
const clientEnv = "LOCKFS_TEST_CLIENT"

// ClientConfig is the value of clientEnv.
type ClientConfig struct {
	Source, Mountpoint string
	Kind               string // what it calls itself; "" is lockfs-test

	WriteBack bool   // keeps what is written until the file is flushed, or for as long as the kernel likes
	Keep      bool   // believes a file's attributes and pages also when the file is opened, as FUSE clients may
	PastCache bool   // has files opened past the kernel's cache, as FUSE clients may
	Absent    bool   // answers ENOENT in place of ESTALE, as JuiceFS does
	Doubts    bool   // believes nothing: the kernel asks it for each name and attribute at each use, as it does of GlusterFS and JuiceFS with the options that lockfs wants
	Unsure    bool   // does not know every other time what a file is: EBADFD, as GlusterFS says while another program opens it
	Ahead     bool   // gives what it has read by a descriptor to later reads of it, until it writes the file itself, as JuiceFS does
	Reuse     bool   // gives the number of the file that was removed last to the one that is made next, as an NFS server does
	Saves     string // a directory: before "f" in the root is opened to read, another client saves it by rename, as the first file of this one
	Grace     string // a file: as long as it is there nothing is opened or made, as by an NFS server that has just started
	Requests  string // a directory in which it notes each request before it answers it
}

// grace returns when it has ended.
func (c *ClientConfig) grace() {
	for c.Grace != "" && unix.Access(c.Grace, unix.F_OK) == nil {
		time.Sleep(time.Millisecond)
	}
}

func (c *ClientConfig) requestLog() (*log.Logger, error) {
	if c.Requests == "" {
		return nil, nil
	}
	file, err := os.OpenFile(filepath.Join(c.Requests, filepath.Base(c.Mountpoint)), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	return log.New(file, "", 0), err
}

func (c *ClientConfig) believes() time.Duration {
	if c.Doubts {
		return 0
	}
	return time.Minute
}

func (c *ClientConfig) handleFlags() (flags uint32) {
	if c.PastCache {
		flags = fuse.FOPEN_DIRECT_IO
	}
	return flags
}

// serveClient is the caching backing of a process.
func serveClient() {
	var config ClientConfig
	err := json.Unmarshal([]byte(os.Getenv(clientEnv)), &config)
	unix.Umask(0)
	var server *fuse.Server
	if err == nil {
		server, err = config.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "caching backing:", err)
		os.Exit(1)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = unix.Unmount(config.Mountpoint, unix.MNT_DETACH)
		os.Exit(0) // and so end whatever hangs in it
	}()
	server.Serve()
}

func (c *ClientConfig) serve() (*fuse.Server, error) {
	requests, err := c.requestLog()
	if err != nil {
		return nil, err
	}
	below, err := newCachingFS(*c)
	if err != nil {
		return nil, err
	}
	capabilities := uint64(fuse.CAP_ATOMIC_O_TRUNC)
	if c.WriteBack {
		capabilities |= fuse.CAP_WRITEBACK_CACHE
	}
	return fuse.NewServer(below, c.Mountpoint, &fuse.MountOptions{
		Logger: requests, Debug: requests != nil,
		Name: cmp.Or(c.Kind, "lockfs-test"), FsName: "caching", AllowOther: true, DirectMountStrict: true, MaxWrite: 1 << 20, DisableReadDirPlus: true,
		ExtraCapabilities: capabilities,
	})
}

func newCachingFS(config ClientConfig) (*cachingFS, error) {
	fd, err := unix.Open(config.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	return &cachingFS{
		RawFileSystem: fuse.NewDefaultRawFileSystem(), config: config,
		nodes: map[uint64]*cachedNode{fuse.FUSE_ROOT_ID: {fd: fd}}, dirs: make(map[uint64][]fuse.DirEntry),
		ahead: make(map[uint64][]byte),
	}, err
}
