package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/renew"

	"github.com/lockfs/lockfs/internal/handover"
	"github.com/lockfs/lockfs/internal/status"
)

// fakes are the volumes of a test, and what became of them.
type fakes struct {
	mu     sync.Mutex
	events []string                 // "default/a started"
	fail   map[string]error         // what Run returns, by id
	linger map[string]time.Duration // how long it takes to end
	live   map[string]*fakeVolume
	others map[string]other // by id
}

type fakeVolume struct {
	all   *fakes
	id    string
	point string
	end   chan error // ends Run
}

func (f *fakes) new(c Config) server {
	return &fakeVolume{all: f, id: (&Spec{Config: c}).id(), point: c.Mountpoint, end: make(chan error, 1)}
}

func (v *fakeVolume) Run(ctx context.Context) error {
	if err := v.start(); err != nil {
		return err
	}
	defer v.ended()
	select {
	case <-ctx.Done():
		v.all.mu.Lock()
		linger := v.all.linger[v.id]
		v.all.mu.Unlock()
		time.Sleep(linger)
		return nil
	case err := <-v.end:
		return err
	}
}

func (v *fakeVolume) start() error {
	f := v.all
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail[v.id]; err != nil {
		f.events = append(f.events, v.id+" failed")
		return err
	}
	for _, other := range f.live {
		if other.point == v.point {
			panic(v.id + " is served where " + other.id + " is")
		}
	}
	f.events = append(f.events, v.id+" started")
	f.live[v.id] = v
	return nil
}

func (v *fakeVolume) ended() {
	f := v.all
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.live, v.id)
	f.events = append(f.events, v.id+" ended")
}

func (v *fakeVolume) Notes() []string { return nil }

func (v *fakeVolume) describe() status.View { return status.View{Mountpoint: "fake"} }

func (v *fakeVolume) other() other {
	v.all.mu.Lock()
	defer v.all.mu.Unlock()
	return v.all.others[v.id]
}

func (v *fakeVolume) Ready(context.Context) error {
	v.all.mu.Lock()
	defer v.all.mu.Unlock()
	if v.all.live[v.id] != v {
		return errNotMounted
	}
	return nil
}

// failing makes a volume fail from now on; with nil, not any more.
func (f *fakes) failing(id string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[id] = err
}

// lingering makes a volume take its time to end.
func (f *fakes) lingering(id string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.linger[id] = d
}

// volume returns one that is served.
func (f *fakes) volume(id string) *fakeVolume {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.live[id]
}

// happened returns what has happened since it was last called, once all stands still.
func (f *fakes) happened() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.events
	f.events = nil
	slices.Sort(e)
	return e
}

func spec(name, revision string) Spec {
	return Spec{Config: Config{Namespace: "default", Name: name, Mountpoint: "/" + name, Renew: renew.Config{TTL: 15 * time.Second}}, Revision: revision}
}

func testDaemon(t *testing.T, test func(t *testing.T, d *Daemon, f *fakes)) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{fail: make(map[string]error), linger: make(map[string]time.Duration), live: make(map[string]*fakeVolume)}
		d := newDaemon(slog.New(slog.DiscardHandler), f.new)
		test(t, d, f)
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if len(f.live) > 0 {
			t.Errorf("still served: %v", f.live)
		}
	})
}

func wantEvents(t *testing.T, f *fakes, want ...string) {
	t.Helper()
	if got := f.happened(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Volumes that do not change are not touched.
func TestDaemonTouchesWhatChanged(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		if body, ready := examine(t.Context(), d.Checks()); ready {
			t.Errorf("ready before it knows for what: %s", body)
		}
		d.Set([]Spec{spec("a", "1"), spec("b", "1")})
		wantEvents(t, f, "default/a started", "default/b started")
		d.Set([]Spec{spec("b", "1"), spec("a", "1"), spec("c", "1")})
		wantEvents(t, f, "default/c started")
		d.Set([]Spec{spec("a", "1"), spec("b", "2"), spec("c", "1")})
		wantEvents(t, f, "default/b ended", "default/b started")
		d.Set([]Spec{spec("a", "1"), spec("c", "1")})
		wantEvents(t, f, "default/b ended")
		d.Reject(errors.New("bad"))
		wantEvents(t, f)
		body, ready := examine(t.Context(), d.Checks())
		if !ready || !strings.Contains(body, "[!] configuration: the volumes are served as before: bad\n") {
			t.Errorf("%v %s", ready, body)
		}
		d.Set([]Spec{spec("a", "1"), spec("c", "1")})
		if d.Rejected() != nil {
			t.Error("a good change does not end a bad one")
		}
	})
}

// A daemon that serves none of its volumes is not ready. Once it has served one, the
// trouble of another is shown, and no reason to replace the daemon.
func TestDaemonIsReady(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		f.failing("default/a", errors.New("no source"))
		d.Set([]Spec{spec("a", "1")})
		synctest.Wait()
		time.Sleep(time.Hour)
		if body, ready := examine(t.Context(), d.Checks()); ready {
			t.Errorf("it serves nothing: %s", body)
		}
		d.Set([]Spec{spec("a", "1"), spec("b", "1")})
		synctest.Wait()
		examine(t.Context(), d.Checks())
		body, ready := examine(t.Context(), d.Checks())
		if !ready || body != "[!] default/a: it is not mounted: no source\n[+] default/b: ok\nready\n" {
			t.Errorf("%v %s", ready, body)
		}
		f.volume("default/b").end <- nil
		synctest.Wait()
		if body, ready := examine(t.Context(), d.Checks()); !ready {
			t.Errorf("it has served one: %s", body)
		}
		f.happened()
		f.failing("default/a", nil)
		time.Sleep(maxRetry)
	})
}

// A daemon that serves one volume is not ready while a former daemon still serves another: Kubernetes
// would end that one, with its open files.
func TestDaemonIsNotReadyBesideTheFormerOne(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		found := func(o other) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.others = map[string]other{"default/a": o}
		}
		f.failing("default/a", &handover.RefusedError{Why: "another policy"})
		found(otherServes)
		d.Set([]Spec{spec("a", "1"), spec("b", "1")})
		synctest.Wait()
		for range 3 {
			if body, ready := examine(t.Context(), d.Checks()); ready {
				t.Errorf("ready: %s", body)
			}
			time.Sleep(time.Minute)
			found(otherUnknown) // the next attempt begins
		}
		found(otherNone)
		time.Sleep(maxRetry)
		if body, ready := examine(t.Context(), d.Checks()); !ready {
			t.Errorf("the former daemon has ended: %s", body)
		}
		f.failing("default/a", nil)
		time.Sleep(maxRetry)
	})
}

// One that cannot be served is tried ever more seldom, and says why; the others
// do not wait for it.
func TestDaemonTriesAgain(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		f.failing("default/a", errors.New("no lock service"))
		d.Set([]Spec{spec("a", "1"), spec("b", "1")})
		wantEvents(t, f, "default/a failed", "default/b started")
		if body, _ := examine(t.Context(), d.Checks()); body != "[-] default/a: it is not mounted: no lock service\n[+] default/b: ok\nnot ready\n" {
			t.Error(body)
		}
		for pause := minRetry; pause < maxRetry; pause *= 2 {
			time.Sleep(pause - 1)
			wantEvents(t, f)
			time.Sleep(time.Nanosecond)
			wantEvents(t, f, "default/a failed")
		}
		f.failing("default/a", nil)
		time.Sleep(maxRetry)
		wantEvents(t, f, "default/a started")
		if body, ready := examine(t.Context(), d.Checks()); !ready {
			t.Error(body)
		}

		// One that ends comes back soon.
		time.Sleep(2 * maxRetry)
		f.volume("default/a").end <- nil
		wantEvents(t, f, "default/a ended")
		if body, _ := examine(t.Context(), d.Checks()); !strings.Contains(body, "default/a: it is not mounted: somebody unmounted it") {
			t.Error(body)
		}
		time.Sleep(minRetry)
		wantEvents(t, f, "default/a started")

		// A change does not wait for the next try.
		f.failing("default/a", errors.New("no source"))
		d.Set([]Spec{spec("a", "2"), spec("b", "1")})
		wantEvents(t, f, "default/a ended", "default/a failed")
		f.failing("default/a", nil)
		d.Set([]Spec{spec("a", "3"), spec("b", "1")})
		wantEvents(t, f, "default/a started")
	})
}

// A volume that another daemon took over stays with it, whatever the file says, until that daemon has
// ended.
func TestDaemonLeavesWhatItHandedOn(t *testing.T) {
	for _, ends := range []struct {
		how     string
		mounted bool // the other daemon leaves its view behind
		after   time.Duration
	}{
		{"unmounted", false, otherAbsence},
		{"killed", true, otherSilence},
	} {
		t.Run(ends.how, func(t *testing.T) {
			testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
				var other struct {
					sync.Mutex
					mounted, answers bool
				}
				set := func(mounted, answers bool) {
					other.Lock()
					defer other.Unlock()
					other.mounted, other.answers = mounted, answers
				}
				d.other = func(context.Context, Config) (mounted, answers bool) {
					other.Lock()
					defer other.Unlock()
					return other.mounted, other.answers
				}
				set(true, true)
				d.Set([]Spec{spec("a", "1")})
				wantEvents(t, f, "default/a started")
				f.volume("default/a").end <- ErrHandedOn
				wantEvents(t, f, "default/a ended")
				for i := range 5 {
					d.Set([]Spec{spec("a", fmt.Sprint(i))})
					time.Sleep(otherSilence)
				}
				set(false, false) // its file has changed
				time.Sleep(otherAbsence / 2)
				set(true, false) // its next worker begins
				time.Sleep(otherSilence / 2)
				set(true, true)
				time.Sleep(otherSilence)
				wantEvents(t, f)
				if body, _ := examine(t.Context(), d.Checks()); !strings.Contains(body, "handed on to another daemon") {
					t.Error(body)
				}
				set(ends.mounted, false)
				time.Sleep(ends.after - minRetry)
				wantEvents(t, f)
				time.Sleep(2 * minRetry)
				wantEvents(t, f, "default/a started")
			})
		})
	}
}

// A volume waits for the one before it, of its name or at its mountpoint.
func TestDaemonWaitsForTheOneBefore(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		f.lingering("default/a", time.Minute)
		d.Set([]Spec{spec("a", "1")})
		wantEvents(t, f, "default/a started")
		b := spec("b", "1")
		b.Mountpoint = "/a"
		d.Set([]Spec{b})
		wantEvents(t, f)
		a := spec("a", "2")
		a.Mountpoint = "/elsewhere"
		d.Set([]Spec{a, b})
		wantEvents(t, f)
		time.Sleep(time.Minute)
		wantEvents(t, f, "default/a ended", "default/a started", "default/b started")
		d.Set([]Spec{b})
		d.Set([]Spec{a, b}) // it comes back before it was gone
		time.Sleep(time.Minute)
		wantEvents(t, f, "default/a ended", "default/a started")
		f.lingering("default/a", 0)
	})
}

// Close waits for all at the same time, and not for ever.
func TestDaemonCloses(t *testing.T) {
	testDaemon(t, func(t *testing.T, d *Daemon, f *fakes) {
		var specs []Spec
		for i := range 5 {
			s := spec(fmt.Sprint(i), "1")
			f.lingering(s.id(), 20*time.Second)
			specs = append(specs, s)
		}
		d.Set(specs)
		synctest.Wait()
		began := time.Now()
		if err := d.Close(); err != nil || time.Since(began) != 20*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
	synctest.Test(t, func(t *testing.T) {
		f := &fakes{linger: map[string]time.Duration{"default/a": time.Hour}, live: make(map[string]*fakeVolume)}
		d := newDaemon(slog.New(slog.DiscardHandler), f.new)
		d.Set([]Spec{spec("a", "1"), spec("b", "1")})
		synctest.Wait()
		if err := d.Close(); err == nil || !strings.Contains(err.Error(), "after 30s: default/a;") {
			t.Errorf("%v", err)
		}
		time.Sleep(time.Hour)
	})
}
