package kubelease_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// hasty has a janitor that does not wait.
func hasty(c kubelease.JanitorConfig) func(*kubelease.Config) {
	return func(cfg *kubelease.Config) {
		c.Interval, c.Election = 50*time.Millisecond, 2*time.Second
		cfg.Janitor = c
	}
}

// names are those of the volume's Leases of a kind.
func names(t *testing.T, volume, kind string) (found []string) {
	t.Helper()
	list, err := raw(t).List(within(t, patience), metav1.ListOptions{LabelSelector: "lockfs.io/kind=" + kind})
	if err != nil {
		t.Fatal(err)
	}
	for _, lease := range list.Items {
		if lease.Annotations["lockfs.io/volume-name"] == "test/"+volume {
			found = append(found, lease.Name)
		}
	}
	return found
}

// Leases of locks that nobody uses are deleted in time, also those that only dead
// sessions use; those in use, and the session's own, are not.
func TestJanitor(t *testing.T) {
	t.Parallel()
	name := newName()
	dying := newBackend(t, name, hasty(kubelease.JanitorConfig{}))
	dead := open(t, dying)
	must(t, dead, lockmgr.NoWait, file("left"))
	b := newBackend(t, name, hasty(kubelease.JanitorConfig{Free: time.Nanosecond, Breaks: time.Nanosecond}))
	s := open(t, b)
	kept := must(t, s, lockmgr.NoWait, file("kept"))
	release(t, s, must(t, s, lockmgr.NoWait, file("free"), tree("dir"))...)
	if err := b.PutBreak(within(t, patience), lockmgr.Break{ID: uuid.New()}); err != nil {
		t.Fatal(err)
	}
	expire(t, dead)
	dying.Close()
	eventually(t, "what nobody uses is deleted", func() bool {
		return len(names(t, name, "file")) == 1 && len(names(t, name, "break")) == 0
	})
	// What is deleted comes back with a later token.
	again := must(t, s, lockmgr.NoWait, file("free"))
	if again[0].Token <= kept[0].Token {
		t.Fatalf("token %d after %d", again[0].Token, kept[0].Token)
	}
	if held, err := s.Held(within(t, patience), append(kept, again...)); err != nil || slices.Contains(held, false) {
		t.Fatalf("Held: %v, %v", held, err)
	}
	if n := len(names(t, name, "session")); n != 1 {
		t.Fatalf("%d sessions", n)
	}
}

// Locks that are free are kept for a while, but not any number of them.
func TestJanitorKeepsFew(t *testing.T) {
	t.Parallel()
	name := newName()
	s := open(t, newBackend(t, name, hasty(kubelease.JanitorConfig{Free: 10 * time.Minute, MaxFree: 3})))
	for _, f := range strings.Fields("a b c d e f g h") {
		release(t, s, must(t, s, lockmgr.NoWait, file(f))...)
	}
	eventually(t, "the oldest are deleted", func() bool { return len(names(t, name, "file")) == 3 })
}

// Those in the way of a request that may still come are kept for the whole time.
func TestJanitorKeepsFences(t *testing.T) {
	t.Parallel()
	name, l := newName(), &link{}
	s := open(t, newBackendAt(t, l.to(as(mountUser)), name, hasty(kubelease.JanitorConfig{Free: 10 * time.Minute, MaxFree: 1})))
	rule, _ := first(late, writes("file", "create"))
	l.obey(rule)
	if _, err := s.Acquire(within(t, patience), request(lockmgr.NoWait, file("late"))); !errors.Is(err, lockmgr.ErrUnavailable) {
		t.Fatalf("Acquire: %v", err)
	}
	eventually(t, "the Lease was written in its place", func() bool { return fenced(t, name) })
	rows, _ := putRow(t, s, lockmgr.AdvisoryPut{Put: row("a")})
	putRow(t, s, lockmgr.AdvisoryPut{Since: rows.Revision, Delete: []string{"a"}})
	for _, f := range strings.Fields("a b c d") {
		release(t, s, must(t, s, lockmgr.NoWait, file(f))...)
	}
	eventually(t, "the oldest are deleted", func() bool { return len(names(t, name, "file")) <= 2 })
	if !fenced(t, name) {
		t.Error("the Lease in the way of a late request was deleted")
	}
	if len(names(t, name, "advisory")) != 1 {
		t.Error("a table was deleted: its Lease may be in the way of a late request")
	}
}

// A break is told once, and what was told is not remembered for longer than the break stands.
func TestBreaksAreForgotten(t *testing.T) {
	t.Parallel()
	name := newName()
	b, other := newBackend(t, name), newBackend(t, name) // b hears by its watch alone, and so in order
	found := make(chan lockmgr.Break, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { b.WatchBreaks(ctx, func(br lockmgr.Break) { found <- br }) })
	first, second := lockmgr.Break{ID: uuid.New()}, lockmgr.Break{ID: uuid.New()}
	put := func(br lockmgr.Break) {
		t.Helper()
		if err := other.PutBreak(within(t, patience), br); err != nil {
			t.Fatal(err)
		}
		select {
		case got := <-found:
			if got.ID != br.ID {
				t.Errorf("told of %v, not of %v", got.ID, br.ID)
			}
		case <-within(t, patience).Done():
			t.Fatal("the watcher is not told")
		}
	}
	put(first)
	if err := raw(t).Delete(within(t, patience), names(t, name, "break")[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	put(second)
	put(first)
	if len(found) > 0 {
		t.Errorf("told again of %v", (<-found).ID)
	}
}

// The Lease of the directories says when one was locked last, and which delegations are over. It is
// kept: a mount may ask late, for example after its machine was suspended.
func TestJanitorKeepsDirectories(t *testing.T) {
	t.Parallel()
	name := newName()
	b := newBackend(t, name, hasty(kubelease.JanitorConfig{Free: time.Nanosecond}))
	s := open(t, b)
	cleanedUp := func() {
		t.Helper()
		eventually(t, "what is free is deleted", func() bool { return len(names(t, name, "file")) == 0 })
	}
	token := func() int64 {
		g := must(t, s, lockmgr.Queue, file("d/f"))
		release(t, s, g...)
		return lockmgr.FencingToken(g[0].Token, 0)
	}
	before := token()
	release(t, s, must(t, s, lockmgr.NoWait, tree("d"))...)
	cleanedUp()
	if s.Undisturbed(file("d/f"), before, token()) {
		t.Error("nobody has locked the directory, if one asks the mount")
	}

	dead := open(t, newBackend(t, name))
	req := request(lockmgr.NoWait, tree("d"))
	req.Mode, req.Keep = lockmgr.Delegated, true
	was := acquire(t, dead, req)
	expire(t, dead)
	token()
	cleanedUp()
	list, err := raw(t).List(within(t, patience), metav1.ListOptions{LabelSelector: "lockfs.io/kind=tree"})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list.Items, func(l coordinationv1.Lease) bool {
		_, over := l.Annotations["lockfs.io/undelegated"] // its own mount may have removed the entry by now
		return l.Annotations["lockfs.io/volume-name"] == "test/"+name && (over || strings.Contains(l.Annotations["lockfs.io/entries"], was.AcquisitionID.String()))
	}) {
		t.Error("a delegation that ended with its session has left no trace")
	}
}

// Of two mounts one cleans up, and the other when that is gone.
func TestJanitorIsElected(t *testing.T) {
	t.Parallel()
	// So that a slow machine does not end an election.
	elects := func(cfg *kubelease.Config) { cfg.Janitor.Election = 20 * time.Second }
	name := newName()
	first := newBackend(t, name, hasty(kubelease.JanitorConfig{Free: time.Nanosecond}), elects)
	s := open(t, first)
	elected := func() string {
		lease, err := raw(t).Get(within(t, patience), janitorName(t, name), metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	eventually(t, "one is elected", func() bool { return elected() != "" })
	holder := elected()
	open(t, newBackend(t, name, hasty(kubelease.JanitorConfig{Free: time.Nanosecond}), elects))
	release(t, s, must(t, s, lockmgr.NoWait, file("f"))...)
	eventually(t, "it cleans up", func() bool { return len(names(t, name, "file")) == 0 })
	if now := elected(); now != holder {
		t.Fatalf("%q was elected beside %q", now, holder)
	}
	first.Close()
	eventually(t, "another is elected", func() bool { now := elected(); return now != "" && now != holder })
}

func janitorName(t *testing.T, volume string) string {
	t.Helper()
	session := names(t, volume, "session")
	return session[0][:strings.Index(session[0], "-session-")] + "-janitor"
}

// An entry of a session that nobody there knows of is removed.
func TestGhost(t *testing.T) {
	t.Parallel()
	name := newName()
	s := open(t, newBackend(t, name, func(c *kubelease.Config) { c.Janitor.Orphans = 50 * time.Millisecond }))
	kept := must(t, s, lockmgr.NoWait, file("kept"), file("also"))
	orphan := must(t, s, lockmgr.NoWait, file("orphan"))[0]
	kubelease.Forget(s, orphan)
	eventually(t, "the orphan is gone", func() bool { return len(entries(t, name)) == 2 })
	release(t, s, kept[0])
	eventually(t, "only what was released is", func() bool {
		held, err := s.Held(within(t, patience), kept)
		return err == nil && !held[0] && held[1]
	})
}

// A orphan that somebody else has removed meanwhile is not said to be removed.
func TestGhostThatIsGone(t *testing.T) {
	t.Parallel()
	name, l, log := newName(), &link{}, &lines{}
	b := newBackendAt(t, l.to(as(mountUser)), name, func(c *kubelease.Config) {
		c.Janitor.Orphans = 50 * time.Millisecond
		c.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	s := open(t, b)
	orphan := must(t, s, lockmgr.NoWait, file("orphan"))[0]
	l.obey(func(c *call) fate {
		if c.verb == "watch" || c.verb == "list" {
			return cut
		}
		return passed
	})
	eventually(t, "its watch has ended", func() bool { kubelease.BreakWatch(b); return !kubelease.Connected(b) })
	removeEntry(t, b, orphan.Key, orphan.Mode, orphan.AcquisitionID)
	kubelease.Forget(s, orphan)
	eventually(t, "it finds that the orphan is gone", func() bool { return kubelease.Orphans(s) == 0 })
	l.mend()
	s.Close(within(t, patience))
	if log.has("removed an entry") {
		t.Errorf("said that it removed what was gone:\n%s", log)
	}
}

// lines is a log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder // GUARDED_BY(mu)
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) has(part string) bool { return strings.Contains(l.String(), part) }
