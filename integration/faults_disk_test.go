package integration

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"
)

// disk is one on which fsync takes its time.
type disk struct{ delay atomic.Int64 }

func (d *disk) takes(delay time.Duration) { d.delay.Store(int64(delay)) }

type slowNode struct {
	below
	disk *disk
}

func (n *slowNode) Fsync(ctx context.Context, f gofs.FileHandle, flags uint32) syscall.Errno {
	time.Sleep(time.Duration(n.disk.delay.Load()))
	return f.(gofs.FileFsyncer).Fsync(ctx, flags)
}

// onDisks gives each member a disk of its own.
func onDisks(t *testing.T, disks map[string]*disk) func(*memberConfig) {
	return func(m *memberConfig) {
		bare := m.Dir + ".disk"
		for _, dir := range []string{bare, m.Dir} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		d := &disk{}
		disks[m.Name] = d
		layOver(t, bare, m.Dir, func(b below) gofs.InodeEmbedder { return &slowNode{b, d} })
	}
}

// An etcd on slow disks grants locks slowly, and one whose leader's disk stands
// still for a while elects another. Neither costs a lock, and writes to files
// that are open do not wait for it.
func TestSlowDisk(t *testing.T) {
	disks := make(map[string]*disk)
	c := newCluster(t, onDisks(t, disks))
	tr := newTrial(t, c, "--wait", "-1")
	tr.load(tr.mount("a"))
	tr.load(tr.mount("b"))
	tr.goesOn("before the fault")
	for _, d := range disks {
		d.takes(200 * time.Millisecond) // an election takes longer
	}
	tr.goesOn("on slow disks")
	for _, d := range disks {
		d.takes(0)
	}
	leader, _ := c.leader()
	disks[leader.config.Name].takes(3 * time.Second)
	eventually(t, "another leads", func() bool { now, _ := c.leader(); return now != leader })
	tr.goesOn("without the old leader")
	disks[leader.config.Name].takes(0)
	c.healthy()
	tr.goesOn("after the fault")
	tr.finish()
	tr.spared()
}
