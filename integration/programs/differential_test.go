package programs

import (
	"bufio"
	"encoding/gob"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/longtest"
)

// A view shows programs what the file system below it shows them: whatever
// several processes of several users do to files, on a view and on a plain
// directory side by side, has the same results. The view is in scope node, for
// one owner: no lock refuses anything.
//
// A difference is shrunk to a script to be kept in differentialCases.
// A long run takes random seeds; LOCKFS_DIFF_SEED=n is that seed alone.
func TestDifferential(t *testing.T) {
	t.Parallel()
	const few, all, length = 40, 40, 150
	next := func(i int) (uint64, bool) { return uint64(i), i <= few }
	if s := os.Getenv("LOCKFS_DIFF_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		next = func(i int) (uint64, bool) { return seed, i == 1 }
	} else if d := longtest.For(t); d > 0 {
		deadline := time.Now().Add(d)
		next = func(i int) (uint64, bool) {
			if i <= all {
				return uint64(i), true
			}
			return rand.Uint64N(1e9), time.Now().Before(deadline)
		}
	}
	r := newDiffRig(t)
	for i, found := 1, 0; ; i++ {
		seed, ok := next(i)
		if !ok {
			t.Logf("%d operations of %d sequences compared, %d of them succeeded", r.compared, i-1, r.succeeded)
			return
		}
		steps := sequence(seed, length)
		d := r.run(steps)
		if d == nil {
			continue
		}
		steps, d = r.shrink(steps, d)
		t.Errorf("seed %d: %s\n%s", seed, d, script(steps))
		if found++; found >= 10 {
			return
		}
	}
}

// What was different once stays alike.
func TestDifferentialCases(t *testing.T) {
	t.Parallel()
	r := newDiffRig(t)
	for _, name := range sortedKeys(differentialCases) {
		c := differentialCases[name]
		d := r.run(c.steps)
		switch {
		case c.known != "" && d != nil:
			t.Logf("%s: known difference, %s: %s", name, c.known, d)
		case c.known != "":
			t.Logf("%s: is not different any more; it was known: %s", name, c.known)
		case d != nil:
			t.Errorf("%s: %s\n%s", name, d, script(c.steps))
		}
	}
}

// diffRig is a view and a plain directory, and for each the same actors.
type diffRig struct {
	t         *testing.T
	sides     [2]*diffSide // the view and the plain directory
	below     *diffActor   // it looks at the view's backing
	source    string
	sequences int
	compared  int
	succeeded int
	broken    bool // an actor hangs or is dead
}

type diffSide struct {
	dir    string
	actors []*diffActor
}

func newDiffRig(t *testing.T) *diffRig {
	t.Helper()
	v := lab.NewVolume(t, "--scope", "node")
	plain := filepath.Join(v.Dir, "plain")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	m := v.Mount("view")
	r := &diffRig{t: t, sides: [2]*diffSide{{dir: m.Dir}, {dir: plain}}, source: v.Source, below: newDiffActor(t)}
	for _, s := range r.sides {
		for range diffUsers {
			s.actors = append(s.actors, newDiffActor(t))
		}
	}
	return r
}

// difference is where two sides parted.
type difference struct {
	at          int // index of the step, -1 for what is left at the end
	step        step
	view, plain string
}

func (d *difference) String() string {
	if d.at < 0 {
		return "what is left differs\n" + diffLines(d.view, d.plain)
	}
	return fmt.Sprintf("step %d %s:\n  view:  %s\n  plain: %s", d.at, d.step, d.view, d.plain)
}

// diffLines shows the lines in which two texts differ.
func diffLines(view, plain string) string {
	var b strings.Builder
	a, p := strings.Split(view, "\n"), strings.Split(plain, "\n")
	for i := range max(len(a), len(p)) {
		var x, y string
		if i < len(a) {
			x = a[i]
		}
		if i < len(p) {
			y = p[i]
		}
		if x != y {
			fmt.Fprintf(&b, "  view:  %s\n  plain: %s\n", x, y)
		}
	}
	return b.String()
}

// like reports whether two differences look like one.
func (d *difference) like(o *difference) bool {
	kind := func(s string) string { // an errno, or success
		if first, _, _ := strings.Cut(s, " "); strings.HasPrefix(first, "E") {
			return first
		}
		return ""
	}
	return d.step.Op == o.step.Op && (d.at < 0) == (o.at < 0) && kind(d.view) == kind(o.view) && kind(d.plain) == kind(o.plain)
}

// run makes steps on both sides, and returns where they part.
func (r *diffRig) run(steps []step) *difference {
	r.t.Helper()
	r.sequences++
	name := strconv.Itoa(r.sequences)
	for _, dir := range []string{r.source, r.sides[1].dir} {
		dir = filepath.Join(dir, name)
		if err := os.Mkdir(dir, 0o777); err != nil {
			r.t.Fatal(err)
		}
		if err := unix.Chmod(dir, 0o777); err != nil {
			r.t.Fatal(err)
		}
	}
	defer r.clean(name)
	r.begin(name)
	for i, s := range steps {
		var said [2]string
		for j, side := range r.sides {
			if j == 1 && refusedRightly(s, said[0]) {
				said[1] = said[0]
				break
			}
			o := order{Step: s}
			if s.Op == "take" {
				from := side.actors[s.N]
				o.PID, o.Get = from.cmd.Process.Pid, from.fds[s.FD2]
			}
			said[j] = r.await(s.Op, side.actors[s.Who].start(o))
			for strings.HasPrefix(said[j], "ENOLCK") { // etcd was late: nothing has been changed
				said[j] = r.await(s.Op, side.actors[s.Who].start(o))
			}
		}
		r.compared++
		if view, plain := said[0], said[1]; view != plain && !differsRightly(s, view, plain) {
			return &difference{i, s, view, plain}
		} else if !strings.HasPrefix(view, "E") {
			r.succeeded++
		}
	}
	// All is closed now, and what mappings held is written back.
	r.begin(name)
	see := order{Step: step{Op: "tree"}}
	view, plain := r.sides[0].actors[0].start(see), r.sides[1].actors[0].start(see)
	seen, want := r.await("tree", view), r.await("tree", plain)
	if seen != want {
		return &difference{-1, step{Op: "tree"}, seen, want}
	}
	if below := r.await("tree", r.below.start(see)); seen != below {
		return &difference{-1, step{Op: "tree of the backing"}, seen, below}
	}
	return nil
}

// begin makes all actors new ones below the directory name.
func (r *diffRig) begin(name string) {
	r.t.Helper()
	var pending []<-chan reply
	for _, side := range r.sides {
		for i, a := range side.actors {
			pending = append(pending, a.start(order{Begin: true, Root: filepath.Join(side.dir, name), User: diffUsers[i]}))
		}
	}
	pending = append(pending, r.below.start(order{Begin: true, Root: filepath.Join(r.source, name), User: diffUsers[0]}))
	for _, p := range pending {
		if said := r.await("begin", p); said != "" {
			r.t.Fatal(said)
		}
	}
}

// clean removes what a sequence has left.
func (r *diffRig) clean(name string) {
	if r.broken {
		return
	}
	for _, side := range r.sides {
		for i, a := range side.actors {
			root := "" // only leaves
			if i == 0 {
				root = filepath.Join(side.dir, name)
			}
			if said := r.await("clean", a.start(order{Clean: true, Root: root})); said != "" {
				r.t.Fatal(said)
			}
		}
	}
}

func (r *diffRig) await(what string, ch <-chan reply) string {
	r.t.Helper()
	select {
	case o, ok := <-ch:
		if !ok {
			r.broken = true
			r.t.Fatalf("%s: an actor died", what)
		}
		return o.Text
	case <-time.After(lab.CallTimeout):
		r.broken = true
		r.t.Fatalf("%s: hangs", what)
	}
	return ""
}

// diffActor is the test's end of an actor.
type diffActor struct {
	cmd *exec.Cmd
	out *bufio.Writer
	enc *gob.Encoder
	dec *gob.Decoder
	fds [slots]int
}

func newDiffActor(t *testing.T) *diffActor {
	t.Helper()
	cmd, in, out := lab.StartProgram(t, actorEnv, os.Args[0])
	a := &diffActor{cmd: cmd, out: bufio.NewWriter(in), dec: gob.NewDecoder(bufio.NewReader(out))}
	a.enc = gob.NewEncoder(a.out)
	return a
}

// start begins a step; the channel is closed without a reply if the actor dies.
func (a *diffActor) start(o order) <-chan reply {
	ch := make(chan reply, 1)
	go func() {
		defer close(ch)
		var r reply
		if a.enc.Encode(o) == nil && a.out.Flush() == nil && a.dec.Decode(&r) == nil {
			a.fds = r.FDs
			ch <- r
		}
	}()
	return ch
}
