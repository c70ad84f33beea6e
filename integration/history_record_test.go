package integration

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
)

// trial is a volume whose files are written to by many, until its history is
// checked.
type trial struct {
	*volume
	service service
	begin   int64    // revision
	files   []string // that all write to
	owned   []string // those of one writer each
	writers []*recorded
}

// recorded is the test's end of a writer.
type recorded struct {
	config  writerConfig
	mount   string
	cmd     *exec.Cmd
	in      io.WriteCloser
	done    chan struct{}
	ended   bool   // by the test
	toLeave string // hold that it was told to let go of

	mu  sync.Mutex
	ops []op
}

var trials atomic.Int64

// newTrial returns a volume of a name space of its own.
func newTrial(t *testing.T, s service, args ...string) *trial {
	t.Helper()
	s.healthy()
	now, err := s.store().Put(t.Context(), "/begin", "")
	if err != nil {
		t.Fatal(err)
	}
	tr := &trial{volume: newVolume(t, args...), service: s, begin: now.Header.Revision, files: []string{"f", "g"}}
	tr.env = append(tr.env, append(s.env(), "LOCKFS_NAMESPACE="+tr.namespace())...)
	return tr
}

// namespace is the volume's own in the lock service.
func (v *volume) namespace() string { return filepath.Base(v.dir) }

// work starts n writers on a mount.
func (tr *trial) work(m *mount, n int) {
	tr.t.Helper()
	for range n {
		tr.run(m, tr.files, 4)
	}
}

// stay starts a writer on a mount that has a file of its own, and writes to it
// all the time: whatever happens, it happens while it is open.
func (tr *trial) stay(m *mount) {
	tr.t.Helper()
	own := "of-" + m.name
	tr.run(m, []string{own}, 0)
	tr.owned = append(tr.owned, own)
}

func (tr *trial) run(m *mount, files []string, most int) {
	tr.t.Helper()
	id := trials.Add(1)
	w := &recorded{mount: m.name, done: make(chan struct{}), config: writerConfig{
		Name: fmt.Sprintf("%s%d", m.name, id), Dir: m.dir, Files: files, Seed: uint64(id), Pause: 20 * time.Millisecond, Most: most,
	}}
	config, err := json.Marshal(w.config)
	if err != nil {
		tr.t.Fatal(err)
	}
	w.cmd = exec.Command(os.Args[0])
	w.cmd.Env = append(os.Environ(), writerEnv+"="+string(config), "GODEBUG=asyncpreemptoff=1")
	w.cmd.Stderr = os.Stderr
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		tr.t.Fatal(err)
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		tr.t.Fatal(err)
	}
	if err := w.cmd.Start(); err != nil {
		tr.t.Fatal(err)
	}
	go w.record(out)
	tr.t.Cleanup(w.kill)
	tr.writers = append(tr.writers, w)
}

// record collects what the writer reports.
func (w *recorded) record(out io.Reader) {
	defer close(w.done)
	dec := json.NewDecoder(out)
	for {
		o := op{Writer: w.config.Name, Mount: w.mount, PID: w.cmd.Process.Pid}
		if dec.Decode(&o) != nil {
			return
		}
		w.mu.Lock()
		w.ops = append(w.ops[:o.N], o) // a second report replaces the first
		w.mu.Unlock()
	}
}

func (w *recorded) kill() {
	_ = w.cmd.Process.Kill()
	<-w.done
	_ = w.cmd.Wait()
}

func (w *recorded) history() []op {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.ops)
}

// goesOn reports whether since then it has opened a file, written and closed.
func (w *recorded) goesOn(since int64) bool {
	last := "" // hold that has written
	for _, o := range w.history() {
		if o.Call < since || !o.ok() {
			continue
		}
		switch {
		case o.Kind == wrote:
			last = o.Hold
		case o.Kind == closed && o.Hold == last:
			return true
		}
	}
	return false
}

// goesOn returns when every writer has opened a file, written and closed since
// the call: whatever was wrong is over.
func (tr *trial) goesOn(what string) {
	tr.t.Helper()
	since := monotonic()
	deadline := time.Now().Add(callTimeout)
	for _, w := range tr.writers {
		for !w.ended && !w.goesOn(since) {
			if time.Now().After(deadline) {
				ops := w.history()
				tr.t.Fatalf("%s: writer %s does not go on; its last calls: %+v", what, w.config.Name, ops[max(0, len(ops)-6):])
			}
			w.letGo()
			time.Sleep(10 * time.Millisecond)
		}
	}
	for _, w := range tr.writers {
		if !w.ended && w.config.Most == 0 {
			eventually(tr.t, w.config.Name+" has its file open again", func() bool { return w.atWork() != "" })
		}
	}
}

// atWork is the hold of a file that the writer has open and writes to, "" if
// there is none.
func (w *recorded) atWork() (hold string) {
	ops := w.history()
	if len(ops) < 4 {
		return ""
	}
	for _, o := range ops[len(ops)-3:] {
		if o.Kind != wrote || o.Errno != 0 {
			return ""
		}
	}
	return ops[len(ops)-1].Hold
}

// letGo tells a writer that stays to let go of what it has, once: a second word
// would be of what it has next.
func (w *recorded) letGo() {
	if hold := w.atWork(); w.config.Most == 0 && hold != "" && hold != w.toLeave {
		w.toLeave = hold
		_, _ = w.in.Write([]byte("\n"))
	}
}

// goesOnFor lets all writers work for a while.
func (tr *trial) goesOnFor(d time.Duration) {
	tr.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		tr.goesOn("undisturbed")
	}
}

// finish ends the writers, and checks their history.
func (tr *trial) finish() {
	tr.t.Helper()
	for _, w := range tr.writers {
		w.in.Close()
	}
	for _, w := range tr.writers {
		select {
		case <-w.done:
		case <-time.After(callTimeout):
			ops := w.history()
			tr.t.Errorf("writer %s does not end; its last calls: %+v", w.config.Name, ops[max(0, len(ops)-6):])
			w.kill()
		}
	}
	h := tr.history()
	if err := h.check(); err != nil {
		dump := filepath.Join(tr.t.ArtifactDir(), "history.txt") // go test -artifacts keeps it
		tr.t.Errorf("the history is wrong (%s):\n%v", dump, err)
		if err := os.WriteFile(dump, []byte(h.String()), 0o644); err != nil {
			tr.t.Error(err)
		}
	}
	tr.t.Logf("programs saw: %s", h.sight())
}

// history collects what there is to know of the files, once the writers have ended.
func (tr *trial) history() *history {
	tr.t.Helper()
	h := &history{files: make(map[string]string), archives: make(map[string]bool)}
	for _, w := range tr.writers {
		h.ops = append(h.ops, w.history()...)
	}
	found, err := os.ReadDir(tr.source)
	if err != nil {
		tr.t.Fatal(err)
	}
	for _, file := range slices.Concat(tr.files, tr.owned) {
		var parts []string
		for _, e := range found {
			if strings.HasPrefix(e.Name(), file+".") {
				h.archives[e.Name()] = true
				parts = append(parts, tr.read(e.Name()))
			}
		}
		slices.SortFunc(parts, func(a, b string) int { return cmp.Compare(firstToken(a), firstToken(b)) })
		if _, err := os.Stat(tr.inSource(file)); err == nil {
			parts = append(parts, tr.read(file))
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
func (tr *trial) readEntries(h *history) {
	tr.t.Helper()
	ctx, cancel := context.WithTimeout(tr.t.Context(), callTimeout)
	defer cancel()
	store := tr.service.store()
	now, err := store.Put(ctx, "/end", "")
	if err != nil {
		tr.t.Fatal(err)
	}
	p := &past{entries: make(map[string]map[int64]entry), ends: make(map[string]map[int64]int64)}
	for _, file := range slices.Concat(tr.files, tr.owned) {
		p.entries[file], p.ends[file] = make(map[int64]entry), make(map[int64]int64)
	}
	note := tr.service.reader(tr.volume, p)
	watch := func(rev int64) clientv3.WatchChan {
		return store.Watch(ctx, "/", clientv3.WithPrefix(), clientv3.WithRev(rev), clientv3.WithPrevKV())
	}
	told := watch(tr.begin)
	for at := tr.begin - 1; at < now.Header.Revision; {
		resp, ok := <-told
		switch {
		case ok && resp.CompactRevision != 0:
			return
		case ok && resp.Canceled && strings.Contains(resp.Err().Error(), rpctypes.ErrInvalidAuthToken.Error()):
			// It went to a member that has not heard of the login yet.
			if _, err := store.Get(ctx, "/end"); err != nil {
				tr.t.Fatal(err)
			}
			told = watch(at + 1)
		case !ok || resp.Err() != nil:
			tr.t.Fatalf("watch of the past: %v", resp.Err())
		}
		for _, e := range resp.Events {
			at = e.Kv.ModRevision
			if err := note(e); err != nil {
				tr.t.Fatal(err)
			}
		}
	}
	h.entries, h.ends = p.entries, p.ends
}
