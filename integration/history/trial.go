package history

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/config"
)

// Trial is a volume whose files are written to by many, until its history is
// checked.
type Trial struct {
	*lab.Volume
	service lab.Service
	begin   int64    // revision
	files   []string // that all write to
	owned   []string // those of one writer each
	linked  []string // those with two names
	Writers []*Recorded
}

// Recorded is the test's end of a writer.
type Recorded struct {
	Config  writerConfig
	Mount   string
	Cmd     *exec.Cmd
	in      io.WriteCloser
	done    chan struct{}
	Ended   bool   // by the test
	toLeave string // hold that it was told to let go of

	mu  sync.Mutex
	ops []Op
}

var trials atomic.Int64

// New returns a volume of a name space of its own.
func New(t *testing.T, s lab.Service, args ...string) *Trial {
	t.Helper()
	s.Healthy()
	tr := &Trial{Volume: lab.NewVolume(t, args...), service: s, begin: mark(t, s, "/begin"), files: []string{"f", "g"}}
	tr.Env = append(tr.Env, append(s.Env(), "LOCKFS_NAMESPACE="+tr.Namespace())...)
	return tr
}

// mark puts a key, and returns the revision.
func mark(t *testing.T, s lab.Service, key string) (rev int64) {
	t.Helper()
	lab.Answers(t, key+" is put", func(ctx context.Context) error {
		now, err := s.Store().Put(ctx, key, "")
		if err == nil {
			rev = now.Header.Revision
		}
		return err
	})
	return rev
}

// Work starts n writers on a mount.
func (tr *Trial) Work(m *lab.Mount, n int) {
	tr.T.Helper()
	for range n {
		tr.run(m, tr.files, 4, 20*time.Millisecond)
	}
}

// Stay starts a writer on a mount that has a file of its own, and writes to it
// all the time: whatever happens, it happens while it is open.
func (tr *Trial) Stay(m *lab.Mount) {
	tr.T.Helper()
	own := "of-" + m.Name
	tr.run(m, []string{own}, 0, 20*time.Millisecond)
	tr.owned = append(tr.owned, own)
}

// WorkAlone starts two writers on a mount that have a file of their own, which a program on
// another mount visits now and then, unless it is nil.
func (tr *Trial) WorkAlone(m, visitor *lab.Mount) {
	tr.T.Helper()
	own := "local-" + m.Name
	for range 2 {
		tr.run(m, []string{own}, 4, 5*time.Millisecond)
	}
	if visitor != nil {
		tr.run(visitor, []string{own}, 2, 2*time.Second)
	}
	if !slices.Contains(tr.owned, own) {
		tr.owned = append(tr.owned, own)
	}
}

// WorkByTwoNames starts a writer on a mount that opens a file by two names, one of them where
// WorkBelow has its files, and another on another mount, unless it is nil.
func (tr *Trial) WorkByTwoNames(m, visitor *lab.Mount) {
	tr.T.Helper()
	file, other := belowDir(m)+"/linked", "linked-"+m.Name
	if !slices.Contains(tr.linked, file) {
		tr.Write(file, "")
		if err := os.Link(tr.InSource(file), tr.InSource(other)); err != nil {
			tr.T.Fatal(err)
		}
		tr.linked = append(tr.linked, file)
	}
	tr.start(m, writerConfig{Files: []string{file}, Other: other, Pause: 50 * time.Millisecond, Most: 4})
	if visitor != nil {
		tr.start(visitor, writerConfig{Files: []string{file}, Other: other, Pause: time.Second, Most: 2})
	}
}

// WorkBelow starts two writers on a mount that have files of their own in a directory, which a
// program on another mount visits now and then, unless it is nil.
func (tr *Trial) WorkBelow(m, visitor *lab.Mount) {
	tr.T.Helper()
	dir := belowDir(m)
	var files []string
	for i := range 4 {
		files = append(files, fmt.Sprint(dir, []string{"/", "/in/"}[i%2], i))
	}
	if !slices.Contains(tr.owned, files[0]) { // else a Shift may have renamed the directory
		if err := os.MkdirAll(tr.InSource(dir+"/in"), 0o777); err != nil {
			tr.T.Fatal(err)
		}
		tr.owned = append(tr.owned, files...)
	}
	for range 2 {
		tr.run(m, files, 4, 5*time.Millisecond)
	}
	if visitor != nil {
		tr.run(visitor, files, 2, 3*time.Second)
	}
}

// Shift starts a program on a mount that renames a directory away and back, in which another's
// WorkBelow has files.
func (tr *Trial) Shift(m, below *lab.Mount, pause time.Duration) {
	tr.T.Helper()
	tr.start(m, writerConfig{Moves: belowDir(below) + "/in", Pause: pause})
}

func belowDir(m *lab.Mount) string { return "below-" + m.Name }

func (tr *Trial) run(m *lab.Mount, files []string, most int, pause time.Duration) {
	tr.T.Helper()
	tr.start(m, writerConfig{Files: files, Pause: pause, Most: most})
}

func (tr *Trial) start(m *lab.Mount, c writerConfig) {
	tr.T.Helper()
	id := trials.Add(1)
	c.Name, c.Dir, c.Seed = fmt.Sprintf("%s%d", m.Name, id), m.Dir, uint64(id)
	w := &Recorded{Mount: m.Name, done: make(chan struct{}), Config: c}
	config, err := json.Marshal(w.Config)
	if err != nil {
		tr.T.Fatal(err)
	}
	w.Cmd = exec.Command(os.Args[0])
	w.Cmd.Env = append(os.Environ(), writerEnv+"="+string(config), "GODEBUG=asyncpreemptoff=1")
	w.Cmd.Stderr = os.Stderr
	if w.in, err = w.Cmd.StdinPipe(); err != nil {
		tr.T.Fatal(err)
	}
	out, err := w.Cmd.StdoutPipe()
	if err != nil {
		tr.T.Fatal(err)
	}
	if err := w.Cmd.Start(); err != nil {
		tr.T.Fatal(err)
	}
	go w.record(out)
	tr.T.Cleanup(w.Kill)
	tr.Writers = append(tr.Writers, w)
}

// record collects what the writer reports.
func (w *Recorded) record(out io.Reader) {
	defer close(w.done)
	dec := json.NewDecoder(out)
	for {
		o := Op{Writer: w.Config.Name, Mount: w.Mount, PID: w.Cmd.Process.Pid}
		if dec.Decode(&o) != nil {
			return
		}
		w.mu.Lock()
		w.ops = append(w.ops[:o.N], o) // a second report replaces the first
		w.mu.Unlock()
	}
}

func (w *Recorded) Kill() {
	_ = w.Cmd.Process.Kill()
	<-w.done
	_ = w.Cmd.Wait()
}

func (w *Recorded) History() []Op {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ops)
}

// begun are the calls that began at that time or later.
func (w *Recorded) begun(since int64) []Op {
	w.mu.Lock()
	defer w.mu.Unlock()
	first, _ := slices.BinarySearchFunc(w.ops, since, func(o Op, t int64) int { return cmp.Compare(o.Call, t) })
	return slices.Clone(w.ops[first:])
}

// goesOn reports whether since then it has opened a file, written and closed.
func (w *Recorded) goesOn(since int64) bool {
	last := "" // hold that has written
	for _, o := range w.begun(since) {
		if !o.ok() {
			continue
		}
		switch {
		case o.Kind == Wrote || o.Kind == WroteUnit:
			last = o.Hold
		case o.Kind == Closed && o.Hold == last:
			return true
		}
	}
	return false
}

// GoesOn returns when every writer has opened a file, written and closed since
// the call: whatever was wrong is over.
func (tr *Trial) GoesOn(what string) {
	tr.T.Helper()
	since := Monotonic()
	deadline := time.Now().Add(lab.CallTimeout)
	for _, w := range tr.Writers {
		for !w.Ended && w.Config.Moves == "" && !w.goesOn(since) {
			if time.Now().After(deadline) {
				tr.standsStill(what)
			}
			w.letGo()
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, w := range tr.Writers {
		if !w.Ended && w.stays() {
			lab.Eventually(tr.T, w.Config.Name+" has its file open again", func() bool { return w.atWork() != "" })
		}
	}
}

// standsStill ends the test with what may say why a writer does not go on.
func (tr *Trial) standsStill(what string) {
	tr.T.Helper()
	tr.T.Logf("it is %d", Monotonic())
	for _, w := range tr.Writers {
		ops := w.History()
		tr.T.Logf("last calls of writer %s (ended by the test: %t): %+v", w.Config.Name, w.Ended, ops[max(0, len(ops)-6):])
	}
	if rows, err := tr.service.Store().Get(tr.T.Context(), "/", clientv3.WithPrefix()); err != nil {
		tr.T.Log(err)
	} else {
		for _, kv := range rows.Kvs {
			tr.T.Logf("%s (%d to %d): %q", kv.Key, kv.CreateRevision, kv.ModRevision, kv.Value)
		}
	}
	tr.EndWithStacks()
	tr.T.Fatalf("%s: a writer does not go on", what)
}

// atWork is the hold of a file that the writer has open and writes to, "" if
// there is none.
func (w *Recorded) atWork() (hold string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.ops)
	if n < 4 {
		return ""
	}
	for _, o := range w.ops[n-3:] {
		if o.Kind != Wrote || o.Errno != 0 {
			return ""
		}
	}
	return w.ops[n-1].Hold
}

// stays reports whether the writer has its file open all the time.
func (w *Recorded) stays() bool { return w.Config.Most == 0 && w.Config.Moves == "" }

// letGo tells a writer that stays to let go of what it has, once: a second word
// would be of what it has next.
func (w *Recorded) letGo() {
	if hold := w.atWork(); w.stays() && hold != "" && hold != w.toLeave {
		w.toLeave = hold
		_, _ = w.in.Write([]byte("\n"))
	}
}

// GoesOnFor lets all writers work for a while.
func (tr *Trial) GoesOnFor(d time.Duration) {
	tr.T.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		tr.GoesOn("undisturbed")
	}
}

// Finish ends the writers, and checks their history.
func (tr *Trial) Finish() {
	tr.T.Helper()
	for _, w := range tr.Writers {
		w.in.Close()
	}
	for _, w := range tr.Writers {
		select {
		case <-w.done:
		case <-time.After(lab.CallTimeout):
			ops := w.History()
			tr.T.Errorf("writer %s does not end; its last calls: %+v", w.Config.Name, ops[max(0, len(ops)-6):])
			w.Kill()
		}
	}
	h := tr.history()
	if err := h.check(); err != nil {
		dump := filepath.Join(tr.T.ArtifactDir(), "history.txt") // go test -artifacts keeps it
		tr.T.Errorf("the history is wrong (%s):\n%v", dump, err)
		if err := os.WriteFile(dump, []byte(h.String()), 0o644); err != nil {
			tr.T.Error(err)
		}
	}
	tr.T.Logf("programs saw: %s", h.sight())
}

// history collects what there is to know of the files, once the writers have ended.
func (tr *Trial) history() *history {
	tr.T.Helper()
	h := &history{files: make(map[string]string), archives: make(map[string]bool)}
	for _, w := range tr.Writers {
		if w.Config.Ranges {
			h.ranges = append(h.ranges, w.History()...)
		} else {
			h.ops = append(h.ops, w.History()...)
		}
	}
	for _, file := range slices.Concat(tr.files, tr.owned, tr.linked) {
		found, err := os.ReadDir(filepath.Dir(tr.InSource(file)))
		if err != nil {
			tr.T.Fatal(err)
		}
		var parts []string
		for _, e := range found {
			if name := filepath.Join(filepath.Dir(file), e.Name()); strings.HasPrefix(name, file+".") {
				h.archives[name] = true
				parts = append(parts, tr.Read(name))
			}
		}
		slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(firstToken(a), firstToken(b)) })
		if _, err := os.Stat(tr.InSource(file)); err == nil {
			parts = append(parts, tr.Read(file))
		}
		h.files[file] = strings.Join(parts, "")
	}
	tr.readEntries(h)
	return h
}

func firstToken(s string) (token int64) {
	_, _ = fmt.Sscan(s, &token)
	return token
}

// readEntries has etcd tell again what entries there were. It leaves them out if
// it was compacted meanwhile.
func (tr *Trial) readEntries(h *history) {
	tr.T.Helper()
	ctx, cancel := context.WithTimeout(tr.T.Context(), lab.CallTimeout)
	defer cancel()
	store := tr.service.Store()
	end := mark(tr.T, tr.service, "/end")
	p := &lab.Past{Entries: make(map[string]map[int64]lab.Entry), Ends: make(map[string]map[int64]int64), Delegations: make(map[int64]lab.Delegation)}
	for _, file := range slices.Concat(tr.files, tr.owned) {
		p.Entries[file], p.Ends[file] = make(map[int64]lab.Entry), make(map[int64]int64)
		p.Entries[shiftedTo(file)], p.Ends[shiftedTo(file)] = make(map[int64]lab.Entry), make(map[int64]int64)
	}
	note := tr.service.Reader(tr.Volume, p)
	watch := func(rev int64) clientv3.WatchChan {
		return store.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(rev), clientv3.WithPrevKV())
	}
	told := watch(tr.begin)
	for at := tr.begin - 1; at < end; {
		resp, ok := <-told
		switch {
		case ok && resp.CompactRevision != 0:
			return
		case ok && resp.Canceled && strings.Contains(resp.Err().Error(), rpctypes.ErrInvalidAuthToken.Error()):
			// It went to a member that has not heard of the login yet.
			if _, err := store.Get(ctx, "/end"); err != nil {
				tr.T.Fatal(err)
			}
			told = watch(at + 1)
		case !ok || resp.Err() != nil:
			tr.T.Fatalf("watch of the past: %v", resp.Err())
		}
		for _, e := range resp.Events {
			at = e.Kv.ModRevision
			if err := note(e); err != nil {
				tr.T.Fatal(err)
			}
		}
	}
	h.entries, h.ends, h.delegations, h.putLate = p.Entries, p.Ends, p.Delegations, p.PutLate
}

// Each fault meets programs at work on several mounts. None of them writes in
// another's time, whatever happens (the history is checked), and all of them go
// on when it is over. docs/FAULTS.md says what they see meanwhile.

// Load has programs at work on a mount: two on the files that all have, and one
// on a file of its own.
func (tr *Trial) Load(m *lab.Mount) {
	tr.T.Helper()
	tr.Work(m, 2)
	tr.Stay(m)
}

// Spared fails the test if a call on an open file failed: no lock was lost.
func (tr *Trial) Spared() {
	tr.T.Helper()
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			if o.Errno != 0 && (o.Kind == Wrote || o.Kind == cut || o.Kind == WroteUnit || o.Kind == Closed) {
				tr.T.Errorf("a lock was lost: %s of %s got %v", o.Kind, o.Hold, o.Errno)
			}
		}
	}
}

// SparedBy is Spared after a fault that lasted for so long. A machine can be too slow to end
// it while a session lives.
func (tr *Trial) SparedBy(lasted time.Duration) {
	tr.T.Helper()
	const short = 10 * time.Second // ⅔ of the time to live
	if lasted > short {
		tr.T.Logf("the fault lasted for %v: locks may be lost", lasted)
		return
	}
	tr.Spared()
}

// WaitedOut fails the test if a call that waits, a creation or a rename, was told that the lock service does not answer
// before the outage was 5 s old. An outage is no older than the service's last answer to the mount, and whoever got a
// lock had one, unless the mount had kept the lock.
func (tr *Trial) WaitedOut() {
	tr.T.Helper()
	for _, w := range tr.Writers {
		for _, o := range w.History() {
			if o.Try || o.File == RangesFile || o.Errno != unix.ENOLCK {
				continue
			}
			if age := tr.outage(o); age < waitedOut {
				tr.T.Errorf("%s of %s got %v when the outage was at most %v old", o.Kind, o.Hold, o.Errno, age)
			}
		}
	}
}

// waitedOut is the age of an outage at which calls that wait are told of it.
const waitedOut = 5 * time.Second

// outage is how old an outage can be of which a call was told.
func (tr *Trial) outage(o Op) time.Duration {
	return time.Duration(o.Return - tr.answered(o.Mount, o.Return))
}

// Unanswered reports whether a call was told that the lock service does not answer, and not earlier than
// documented. Its mount has the default time to live, or a longer one.
func (tr *Trial) Unanswered(o Op) bool {
	if o.Errno != unix.ENOLCK {
		return false
	}
	tried := time.Duration(o.Return-o.Call) >= config.DefaultTTL/8
	switch o.Kind {
	case locked:
		return o.Try && tried
	case asked:
		return tried
	case Acquired, readTok, moved, shifted:
		return o.Try && tried || tr.outage(o) >= waitedOut
	}
	return false
}

// answered is a time before the mount's last answer that its programs know of at a time.
func (tr *Trial) answered(mount string, by int64) (since int64) {
	for _, w := range tr.Writers {
		if w.Mount != mount {
			continue
		}
		var called int64 // when the open was called whose token comes next
		for _, o := range w.History() {
			switch {
			case !o.ok() || o.Return > by:
			case o.Kind == Acquired:
				called = o.Call
			case o.Kind == readTok && o.Token%oneEntry == 0: // it is the first owner of what the service has granted
				since = max(since, called)
			}
		}
	}
	return since
}

// Saw returns when some program had a call return since that matches.
func (tr *Trial) Saw(since int64, what string, match func(Op) bool) {
	tr.T.Helper()
	lab.Eventually(tr.T, what, func() bool {
		for _, w := range tr.Writers {
			for _, o := range w.History() {
				if o.Return > since && match(o) {
					return true
				}
			}
		}
		return false
	})
}
