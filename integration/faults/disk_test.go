package faults

import (
	"context"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gofs "github.com/hanwen/go-fuse/v2/fs"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// disk is one on which fsync takes its time.
type disk struct{ delay atomic.Int64 }

func (d *disk) takes(delay time.Duration) { d.delay.Store(int64(delay)) }

type slowNode struct {
	lab.Below
	disk *disk
}

func (n *slowNode) Fsync(ctx context.Context, f gofs.FileHandle, flags uint32) syscall.Errno {
	time.Sleep(time.Duration(n.disk.delay.Load()))
	return f.(gofs.FileFsyncer).Fsync(ctx, flags)
}

// onDisks gives each member a disk of its own.
func onDisks(t *testing.T, disks map[string]*disk) func(*lab.MemberConfig) {
	return func(m *lab.MemberConfig) {
		bare := m.Dir + ".disk"
		for _, dir := range []string{bare, m.Dir} {
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		d := &disk{}
		disks[m.Name] = d
		lab.LayOver(t, bare, m.Dir, func(b lab.Below) gofs.InodeEmbedder { return &slowNode{b, d} })
	}
}

// An etcd on slow disks grants locks slowly, and one whose leader's disk stands
// still for a while elects another. Neither costs a lock, and writes to files
// that are open do not wait for it.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	disks := make(map[string]*disk)
	c := lab.NewCluster(t, onDisks(t, disks))
	tr := history.New(t, c, "--wait", "-1", "--suspend-wait", "10m")
	tr.Load(tr.Mount("a"))
	tr.Load(tr.Mount("b"))
	tr.GoesOn("before the fault")
	for _, d := range disks {
		d.takes(200 * time.Millisecond) // an election takes longer
	}
	tr.GoesOn("on slow disks")
	for _, d := range disks {
		d.takes(0)
	}
	leader, _ := c.Leader()
	disks[leader.Config.Name].takes(3 * time.Second)
	lab.Eventually(t, "another leads", func() bool { now, _ := c.Leader(); return now != leader })
	tr.GoesOn("without the old leader")
	disks[leader.Config.Name].takes(0)
	c.Healthy()
	tr.GoesOn("after the fault")
	tr.Finish()
	tr.Spared()
}
