package commands

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// statusOf is what 'lockfs status -o json' says of views.
func statusOf(v *lab.Volume, paths ...string) (exit int, text string, views map[string]statusView) {
	v.T.Helper()
	exit, out, stderr := lab.Outcome(v.T, v.Command(append([]string{"status", "--state-dir", v.State, "-o", "json"}, paths...)...))
	var answer struct {
		Daemons []struct {
			PID   int
			Error string
			Views []statusView
		}
		Dead []statusView `json:"dead_views"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		v.T.Fatalf("lockfs status: exit status %d, %v: %s%s", exit, err, out, stderr)
	}
	views = make(map[string]statusView)
	for _, d := range answer.Daemons {
		for _, s := range d.Views {
			views[s.Mountpoint] = s
		}
	}
	for _, s := range answer.Dead {
		views[s.Mountpoint] = s
	}
	return exit, out + stderr, views
}

type statusView struct {
	State, Error, Mountpoint string
	Session                  struct{ State string }
	Locks                    struct {
		Held, Waiting int
		Longest       []struct {
			Path string
			PID  int
		} `json:"longest_waits"`
	}
}

// 'lockfs status' tells who holds and who waits, without HTTP; of a daemon that is
// frozen, and of one that was killed.
func TestStatusOfMounts(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	holder, waiter := lab.NewAgent(t), lab.NewAgent(t)
	holder.Open(a.Path("f"), unix.O_WRONLY|unix.O_CREAT)
	waiter.Start(lab.Call{Op: "open", Path: b.Path("f"), Flags: unix.O_WRONLY})
	v.WaitFor("f")
	lab.Eventually(t, "it waits for f", func() bool { _, _, now := statusOf(v, b.Dir); return now[b.Dir].Locks.Waiting == 1 })
	lab.Eventually(t, "one holds, and one waits", func() bool { // a busy machine's daemon may not answer in time
		exit, _, now := statusOf(v, a.Dir, b.Dir)
		w := now[b.Dir].Locks.Longest
		return exit == 0 && now[a.Dir].Locks.Held == 1 && now[a.Dir].Session.State == "held" &&
			len(w) == 1 && w[0].Path == "f" && w[0].PID == waiter.PID()
	})
	lab.Freeze(t, b.Cmd.Process.Pid)
	lab.Eventually(t, "a frozen daemon is told apart", func() bool {
		exit, text, now := statusOf(v, a.Dir, b.Dir)
		return exit == 1 && now[a.Dir].State == "served" && strings.Contains(text, "does not answer")
	})
	b.Kill()
	lab.Eventually(t, "a dead daemon is told apart", func() bool {
		exit, _, now := statusOf(v, a.Dir, b.Dir)
		return exit == 1 && now[a.Dir].State == "served" && now[b.Dir].State == "not served"
	})
	if os.Getuid() == 0 {
		fi, err := os.Stat(filepath.Join(v.State, "status"))
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("others can ask: %v, %v", fi.Mode(), err)
		}
	}
}

// 'lockfs status' answers while the volume does not.
func TestStatusOfAHungVolume(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t, "--embedded")
	at := lab.NewTurnstile(t)
	v.Under(func(b lab.Below) gofs.InodeEmbedder { return &lab.HeldReads{Below: b, At: at} })
	a := v.Mount("a")
	v.Write("slow", "text")
	p := lab.NewAgent(t)
	at.Shut.Store(true)
	p.Start(lab.Call{Op: "open", Path: a.Path("slow"), Flags: unix.O_RDONLY})
	lab.Eventually(t, "a request is in the volume", func() bool {
		exit, text, _ := statusOf(v, a.Dir)
		return exit == 0 && strings.Contains(text, `"requests_under_way": 1`)
	})
	at.End()
}
