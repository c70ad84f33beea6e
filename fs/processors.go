package fs

import (
	"runtime"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// processors: as many goroutines of go-fuse wait for requests as Go had processors (GOMAXPROCS) at
// the mount, and one more. Each keeps a processor while it waits, but only as long as another is idle.
// See ADR 0044.
var processors struct {
	sync.Mutex
	given int // GOMAXPROCS before the first mount
}

// maxReaders is go-fuse's limit.
const maxReaders = 16

// newLibraryServer is fuse.NewServer. Then there is a processor for each that waits, and one more.
func newLibraryServer(raw fuse.RawFileSystem, mountpoint string, o *fuse.MountOptions) (*fuse.Server, error) {
	p := &processors
	p.Lock()
	defer p.Unlock()
	if p.given == 0 {
		p.given = runtime.GOMAXPROCS(0)
	}
	runtime.GOMAXPROCS(p.given)
	defer runtime.GOMAXPROCS(p.given + min(max(p.given, 2), maxReaders) + 2)
	return fuse.NewServer(raw, mountpoint, o)
}
