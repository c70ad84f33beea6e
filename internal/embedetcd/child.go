package embedetcd

import (
	"context"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.uber.org/zap"

	"golang.org/x/sys/unix"
)

// childName is argv[0] of the etcd process. ps shows it, and init below recognises the process by
// it.
const childName = "lockfs-etcd"

// init turns a spawned process into the etcd server. main does not: test binaries are such
// processes too.
func init() {
	if len(os.Args) == 2 && os.Args[0] == childName {
		os.Exit(runChild(os.Args[1]))
	}
}

// lockFD follows the descriptor of the locked SOURCE. The kernel closes them in this order, and so
// releases the flocks, after all else of the process is gone.
const lockFD = 4

// runChild serves etcd on dir until the parent stops it or ends: end of file on stdin.
func runChild(dir string) int {
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	closeInherited()
	unix.Umask(0o077)
	lg := newChildLogger()
	if !holdsLock(dir) {
		lg.Error(childName + " is started by lockfs mount only")
		return 2
	}
	go func() {
		// The parent stops, or is gone. What etcd has acknowledged is on disk, and a successor
		// waits. To close the files well would take as long as a slow disk likes.
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = os.Remove(socketPath(dir))
		os.Exit(0)
	}()

	cfg := ordinary.etcdConfig(dir, lg)
	e, err := embed.StartEtcd(cfg) // removes a stale socket: we hold the flock
	if err != nil {
		lg.Error("cannot start etcd", zap.Error(err))
		return 1
	}
	if err := os.Chmod(socketPath(dir), 0o600); err != nil {
		lg.Error("cannot set the mode of the socket", zap.Error(err))
		return 1
	}
	go ordinary.keep(context.Background(), e, lg)
	select {
	case err := <-e.Err():
		lg.Error("etcd failed", zap.Error(err))
	case <-e.Server.StopNotify():
		lg.Error("etcd stopped by itself")
	}
	return 1
}

// etcdConfig is an etcd of one member for one machine.
func (b bounds) etcdConfig(dir string, lg *zap.Logger) *embed.Config {
	// etcd's default of twice 64 MB is too much for a user's state directory.
	wal.SegmentSizeBytes = 8 << 20

	client := url.URL{Scheme: "unix", Path: socketPath(dir)}
	peer := url.URL{Scheme: "unix", Host: childName} // only a name: see ListenPeerUrls

	cfg := embed.NewConfig()
	cfg.Name = childName
	cfg.Dir = dataPath(dir)
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ListenPeerUrls = nil // it has no peers
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = childName + "=" + peer.String()
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(lg)

	// A single member waits one election timeout after its start, at every takeover. The timeout
	// also sets the smallest TTL: 1.5 times, rounded up to a second.
	cfg.TickMs, cfg.ElectionMs = 20, 100

	// Nobody reads old revisions, but a takeover reads all that is kept: about a second for
	// 300,000.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "15s"
	// The log is kept from the last snapshot but one: its requests may be large.
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = 500, 100
	cfg.QuotaBackendBytes = b.quota
	cfg.MaxWalFiles = 0 // etcd ends when it finds one removed: see bounds.purge

	// cfg.UnsafeNoFsync stays off: after a power cut, an etcd with torn files does not start.
	return cfg
}

// holdsLock guards against a start without the flock. It makes no os.File, which the garbage
// collector would close.
func holdsLock(dir string) bool {
	var have, want unix.Stat_t
	return unix.Fstat(lockFD, &have) == nil && unix.Stat(lockPath(dir), &want) == nil &&
		have.Dev == want.Dev && have.Ino == want.Ino
}

// closeInherited closes go-fuse's /dev/fuse, which is not close-on-exec: with a copy here, the
// programs of a killed mount would wait instead of failing.
func closeInherited() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil || fd <= lockFD {
			continue
		}
		// The Go runtime's own poller is an anonymous inode.
		if to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil && !strings.HasPrefix(to, "anon_inode:") {
			_ = unix.Close(fd)
		}
	}
}
