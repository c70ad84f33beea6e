package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	gofs "github.com/hanwen/go-fuse/v2/fs"
	"golang.org/x/sys/unix"
)

// status is what 'lockfs status -o json' says of views.
func (v *volume) status(paths ...string) (exit int, text string, views map[string]statusView) {
	v.t.Helper()
	exit, out, stderr := outcome(v.t, v.command(append([]string{"status", "--state-dir", v.state, "-o", "json"}, paths...)...))
	var answer struct {
		Daemons []struct {
			PID   int
			Error string
			Views []statusView
		}
		Dead []statusView `json:"dead_views"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		v.t.Fatalf("lockfs status: exit status %d, %v: %s%s", exit, err, out, stderr)
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
	v := newVolume(t, "--wait", "-1")
	a, b := v.mount("a"), v.mount("b")
	holder, waiter := newAgent(t), newAgent(t)
	holder.open(a.path("f"), wronly|create)
	waiter.start(call{Op: "open", Path: b.path("f"), Flags: wronly})
	v.waitFor("f")
	eventually(t, "it waits for f", func() bool { _, _, now := v.status(b.dir); return now[b.dir].Locks.Waiting == 1 })
	exit, text, now := v.status(a.dir, b.dir)
	if w := now[b.dir].Locks.Longest; exit != 0 || now[a.dir].Locks.Held != 1 || now[a.dir].Session.State != "held" ||
		len(w) != 1 || w[0].Path != "f" || w[0].PID != waiter.pid() {
		t.Errorf("exit status %d, %s", exit, text)
	}
	if err := b.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if exit, text, now = v.status(a.dir, b.dir); exit != 1 || now[a.dir].State != "served" || !strings.Contains(text, "does not answer") {
		t.Errorf("a frozen daemon: exit status %d, %s", exit, text)
	}
	b.kill()
	if exit, text, now = v.status(a.dir, b.dir); exit != 1 || now[a.dir].State != "served" || now[b.dir].State != "not served" {
		t.Errorf("a dead daemon: exit status %d, %s", exit, text)
	}
	if os.Getuid() == 0 {
		fi, err := os.Stat(filepath.Join(v.state, "status"))
		if err != nil || fi.Mode().Perm() != 0o700 {
			t.Errorf("others can ask: %v, %v", fi.Mode(), err)
		}
	}
}

// 'lockfs status' answers while the volume does not.
func TestStatusOfAHungVolume(t *testing.T) {
	v := newVolume(t, "--embedded")
	at := newTurnstile(t)
	v.under(func(b below) gofs.InodeEmbedder { return &heldReads{b, at} })
	a := v.mount("a")
	v.write("slow", "text")
	p := newAgent(t)
	at.shut.Store(true)
	p.start(call{Op: "open", Path: a.path("slow"), Flags: rdonly})
	eventually(t, "a request is in the volume", func() bool {
		exit, text, _ := v.status(a.dir)
		return exit == 0 && strings.Contains(text, `"requests_under_way": 1`)
	})
	at.end()
}
