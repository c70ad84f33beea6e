package faults

import (
	"context"
	"path/filepath"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

// save writes a snapshot of an etcd, as 'etcdctl snapshot save' does.
func save(t *testing.T, etcd *clientv3.Client) (file string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lab.CallTimeout)
	defer cancel()
	file = filepath.Join(t.TempDir(), "snapshot")
	one := clientv3.Config{Endpoints: etcd.Endpoints()[:1], Logger: zap.NewNop()}
	member, err := clientv3.New(one)
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	if _, err := member.Get(ctx, "none"); err != nil { // the member has caught up with its leader
		t.Fatal(err)
	}
	if _, err := snapshot.NewV3(zap.NewNop()).Save(ctx, one, file); err != nil {
		t.Fatal(err)
	}
	return file
}

// ages brings etcd's revision to where a restored one does not get in a test.
func ages(t *testing.T, etcd *clientv3.Client) {
	t.Helper()
	for range 300 {
		lab.Answers(t, "etcd ages", func(ctx context.Context) error { return second(etcd.Put(ctx, "/filler", "")) })
	}
}

// What docs/how-to/restore.md says: with every mount stopped, etcd made
// from a snapshot and the locks of the dead deleted, locks are free at once, and
// fencing tokens go on growing.
func TestRestore(t *testing.T) {
	t.Parallel()
	c := lab.NewCluster(t)
	tr := history.New(t, c)
	a := tr.Mount("a")
	p := lab.NewAgent(t)
	p.Open(a.Path("dead"), unix.O_WRONLY|unix.O_CREAT) // of the snapshot, and then of nobody
	file := save(t, c.Client)
	p.Open(a.Path("later"), unix.O_WRONLY|unix.O_CREAT)
	ages(t, c.Client)
	last := p.Open(a.Path("token"), unix.O_WRONLY|unix.O_CREAT)
	before := p.Token(last)
	a.Stop()

	c.Restore(file, true)
	lab.Answers(t, "the locks are deleted", func(ctx context.Context) error {
		return second(c.Client.Delete(ctx, "/locks/", clientv3.WithPrefix()))
	})
	b := tr.Mount("b")
	q := lab.NewAgent(t)
	for _, name := range []string{"dead", "later"} {
		var r lab.Result
		lab.Eventually(t, "etcd answers in time", func() bool {
			r = q.Do(lab.Call{Op: "open", Path: b.Path(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
			return r.Errno != unix.ENOLCK
		})
		if r.Errno != 0 {
			t.Fatalf("%s is not free: %v", name, r.Err())
		}
		q.Must(lab.Call{Op: "close", FD: r.N})
	}
	if after := q.Token(q.Open(b.Path("token"), unix.O_WRONLY)); after <= before {
		t.Errorf("a token of %d after one of %d", after, before)
	}
}

// A mount that was not stopped loses what the restored etcd does not know, for
// ever, and is as good as a new one then.
func TestRestoreUnderMounts(t *testing.T) {
	lab.Over(t, testRestoreUnderMounts, lab.Local, lab.InLeases.Alone().ForLong())
}

func testRestoreUnderMounts(t *testing.T, on lab.Setup) {
	for name, of := range map[string]struct {
		empty bool
		bump  bool
	}{
		"as it was": {},
		"bumped":    {bump: true},
		"empty":     {empty: true},
	} {
		t.Run(name, func(t *testing.T) {
			c := on.NewService(t)
			tr := history.New(t, c, "--wait", "-1", "--name-wait", "2m", "--flock", "cluster")
			a, b := tr.Mount("a"), tr.Mount("b")
			one, other := lab.NewAgent(t), lab.NewAgent(t)
			one.Must(lab.Call{Op: "close", FD: one.Open(a.Path("table"), unix.O_WRONLY|unix.O_CREAT)})
			table, theirs := one.Open(a.Path("table"), unix.O_RDONLY), other.Open(b.Path("table"), unix.O_RDONLY)
			file := ""
			if !of.empty {
				file = save(t, c.Store())
			}
			p, q := lab.NewAgent(t), lab.NewAgent(t)
			held := p.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
			q.Must(lab.Call{Op: "mkdir", Path: b.Path("d")})
			ages(t, c.Store())
			one.Must(lab.Call{Op: "flock", FD: table, Flags: unix.LOCK_EX}) // a knows the table as of then
			one.Must(lab.Call{Op: "flock", FD: table, Flags: unix.LOCK_UN})
			q.Must(lab.Call{Op: "rename", Path: b.Path("d"), Path2: b.Path("e")}) // b knows the directory entries as of then

			c.Restore(file, of.bump)
			lab.Eventually(t, "a has lost its lock", func() bool {
				return p.Do(lab.Call{Op: "write", FD: held, Data: "x"}).Errno == unix.EIO
			})
			next := q.Open(b.Path("f"), unix.O_WRONLY)
			q.Must(lab.Call{Op: "write", FD: next, Data: "y"})
			p.Fails(lab.Call{Op: "write", FD: held, Data: "x"}, unix.EIO)
			q.Must(lab.Call{Op: "close", FD: next})

			other.Must(lab.Call{Op: "flock", FD: theirs, Flags: unix.LOCK_EX})
			lab.Eventually(t, "a flock beside it is refused", func() bool {
				r := one.Do(lab.Call{Op: "flock", FD: table, Flags: unix.LOCK_EX | unix.LOCK_NB})
				if r.Errno == 0 {
					t.Fatal("both mounts have the flock")
				}
				return r.Errno == unix.EAGAIN // and not ENOLCK: the service was silent
			})

			// Directory entries are those of the etcd that is there now.
			p.Must(lab.Call{Op: "rename", Path: a.Path("e"), Path2: a.Path("d")})
			q.Must(lab.Call{Op: "rename", Path: b.Path("f"), Path2: b.Path("g")})
			again := p.Open(a.Path("h"), unix.O_WRONLY|unix.O_CREAT)
			p.Must(lab.Call{Op: "write", FD: again, Data: "z"})
			p.Must(lab.Call{Op: "close", FD: again})
		})
	}
}
