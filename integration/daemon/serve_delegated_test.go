package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// The policy of a volume is changed in the daemon's file while a directory of it is delegated to the
// mount, with a file open below: the view is mounted anew, what was open writes no more, and the
// new policy holds below that directory. Nothing of the delegation is left.
func TestServeChangesThePolicyWhileDelegated(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	if err := os.Mkdir(filepath.Join(n.source("v"), "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	n.list("v keep: 5m,")
	n.start()
	n.ready(200, `\[\+\] default/v: ok`)
	view := func(name string) string { return filepath.Join(n.view("v"), "d", name) }
	listed := func() (locks []lab.Entry) {
		return n.Vol.LSOf("--endpoints", n.endpoint(), "--name", "v")
	}
	user, other := lab.NewAgent(t), lab.NewAgent(t)
	files := 0
	lab.Eventually(t, "the directory is delegated", func() bool {
		for range 40 {
			user.Must(lab.Call{Op: "close", FD: user.Open(view(fmt.Sprint("f", files)), unix.O_WRONLY|unix.O_CREAT)})
			files++
		}
		es := listed()
		return len(es) == 1 && es[0].Path == "d" && es[0].State == "kept"
	})
	open := user.Open(view("open"), unix.O_WRONLY|unix.O_CREAT)
	user.Must(lab.Call{Op: "write", FD: open, Data: "before"})

	n.list("v keep: 5m, policy: [d/*.log nolock], setPolicy: true,")
	lab.Eventually(t, "the view is mounted anew", func() bool {
		return user.Do(lab.Call{Op: "write", FD: open, Data: "after"}).Errno == unix.ENOTCONN
	})
	n.ready(200, `\[\+\] default/v: ok`)
	if es := listed(); len(es) != 0 {
		t.Errorf("of the first mount there is left %+v", es)
	}
	if b, err := os.ReadFile(filepath.Join(n.source("v"), "d", "open")); err != nil || !strings.HasPrefix(string(b), "before") {
		t.Errorf("the open file has %q, %v", b, err)
	}
	for name, want := range map[string]unix.Errno{"x.log": 0, "f0": unix.EAGAIN} {
		first := user.Open(view(name), unix.O_WRONLY|unix.O_CREAT)
		r := other.Do(lab.Call{Op: "open", Path: view(name), Flags: unix.O_WRONLY | unix.O_NONBLOCK})
		if r.Errno != want {
			t.Errorf("a second open of %s: %v, want %v", name, r.Err(), want)
		}
		user.Must(lab.Call{Op: "close", FD: first})
	}
}
