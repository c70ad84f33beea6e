package handover

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// A view is unmounted while a program is in it, another view is mounted at its path, and then the
// first view's daemon dies. Its next worker has the first view, and leaves the other one alone.
func TestDeathOfADetachedView(t *testing.T) {
	for name, test := range map[string]func(t *testing.T, d *detached){
		"its program leaves": func(t *testing.T, d *detached) {
			d.goesOn(t)
			d.program.Must(lab.Call{Op: "chdir", Path: "/"})
		},
		"it is told to end": func(t *testing.T, d *detached) {
			d.goesOn(t)
			if status := d.first.Stop(); status != 0 {
				t.Errorf("exit status %d\n%s", status, d.first.Log)
			}
			d.program.Fails(lab.Call{Op: "mkdir", Path: "x"}, unix.ENOTCONN)
		},
		"it is given up": func(t *testing.T, d *detached) {
			d.replaceSource(t)
			d.first.BecomesSteady()
			if err := unix.Kill(d.first.Serving(), unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			lab.Eventually(t, "the log says so", func() bool {
				return d.first.Said("the view of a daemon that died cannot be taken over")
			})
			// The log says so before it is done: a call that waits then gets ECONNABORTED.
			if r := d.program.InTime(lab.Call{Op: "mkdir", Path: "x"}); r.Errno != unix.ENOTCONN && r.Errno != unix.ECONNABORTED {
				t.Errorf("mkdir in the view that was given up: %v, want ENOTCONN", r.Err())
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := lab.NewVolume(t)
			v.Mount("b") // which serves etcd
			d := &detached{vol: v, first: lab.Supervise(v.Mount("a", "--supervise")), program: lab.NewAgent(t)}
			d.program.Must(lab.Call{Op: "chdir", Path: d.first.Dir})
			if err := unix.Unmount(d.first.Dir, unix.MNT_DETACH); err != nil {
				t.Fatal(err)
			}
			d.second = v.Mount("a")
			test(t, d)
			lab.Eventually(t, "the first daemon ends", d.first.Ended)
			if err := lab.InTime(func() error { return os.WriteFile(d.second.Path("f"), nil, 0o644) }); err != nil || lab.FSType(d.second.Dir) != unix.FUSE_SUPER_MAGIC {
				t.Errorf("the second view: %v\nthe first daemon:\n%s", err, d.first.Log)
			}
		})
	}
}

// detached is a view that is not at its path any more.
type detached struct {
	vol     *lab.Volume
	first   *lab.Supervised
	program *lab.Agent // in the view
	second  *lab.Mount // is at the path
}

// goesOn kills the view's worker. The next one goes on with the view, and does not offer it by the
// name of the one that is at its path.
func (d *detached) goesOn(t *testing.T) {
	t.Helper()
	d.first.KillWorker()
	d.program.Must(lab.Call{Op: "mkdir", Path: "x"})
	d.program.Must(lab.Call{Op: "rmdir", Path: "x"})
	lab.Eventually(t, "the worker offers nothing", func() bool {
		return d.first.Said("an upgrade will not be able to take this mount over")
	})
	d.second = upgrade(t, d.second)
}

// replaceSource makes SOURCE another directory, of the same volume.
func (d *detached) replaceSource(t *testing.T) {
	t.Helper()
	const marker = "/.lockfs-volume"
	source, away := d.vol.Source, d.vol.Source+"-away"
	text, err := os.ReadFile(source + marker)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(source, away); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(source+marker, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
