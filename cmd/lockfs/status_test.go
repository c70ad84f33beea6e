package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/internal/status"
)

// The reason is printed whether the daemon is ready or not, and trouble is the exit
// status.
func TestStatus(t *testing.T) {
	bad := func(context.Context) error { return errors.New("no\n\"source\" 's'\x1b[2J") }
	good := func(context.Context) error { return nil }
	view := func() status.View {
		return status.View{
			Source: "/src", Mountpoint: "/none/view", Files: &status.Files{Open: 1, UnderWay: 2, Waiting: 3},
			Takeovers: &status.Takeovers{Count: 1, Ago: 1.3, Took: 0.12, Files: 4, Locks: 5, Waiting: 6},
		}
	}
	for _, c := range []struct {
		check serve.Check
		out   string
		fails bool
	}{
		{serve.Check{Name: "ns/v", Ready: good, View: view}, "[+] ns/v: ok\n    view          /none/view, of /src\n" +
			"    files         1 open; the volume serves 2 requests, 3 wait for their turn\n" +
			"    takeovers     1, the last 1.3s ago; it took 120ms and carried 4 open files, 5 locks, 6 waiting\n", false},
		{serve.Check{Name: "ns/v", Ready: bad}, `[-] ns/v: no; "source" 's'\x1b[2J` + "\n", true},
		{serve.Check{Name: "ns/v", Ready: bad, Advisory: true}, `[!] ns/v: no; "source" 's'\x1b[2J` + "\n", true},
		{serve.Check{Name: "ns/v", Ready: good, Notes: func() []string { return []string{"nocto"} }}, "[+] ns/v: ok\n[*] ns/v: nocto\n", false},
	} {
		dir := t.TempDir()
		stop := answerStatus(dir, slog.New(slog.DiscardHandler), func() []serve.Check { return []serve.Check{c.check} })
		daemons, err := status.Ask(t.Context(), dir)
		stop()
		if err != nil || len(daemons) != 1 {
			t.Fatalf("%+v, %v", daemons, err)
		}
		var out bytes.Buffer
		if err := printStatus(&out, daemons, nil); err != nil || !strings.HasPrefix(out.String(), c.out) {
			t.Errorf("%q, %v; want %q", &out, err, c.out)
		}
		if troubled(daemons, nil) != c.fails {
			t.Errorf("%q: trouble is %v", &out, !c.fails)
		}
		if left, err := status.Ask(t.Context(), dir); err != nil || len(left) != 0 {
			t.Errorf("after its end: %+v, %v", left, err)
		}
	}
}

// Views that hang neither count as dead nor delay each other.
func TestUnservedViews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var views []mounts.Mount
		for _, point := range []string{"/hangs/1", "/dead/1", "/hangs/2", "/served", "/dead/2"} {
			views = append(views, mounts.Mount{Point: point})
		}
		over := make(chan struct{})
		began := time.Now()
		dead := unserved(views, func(point string) bool {
			if strings.HasPrefix(point, "/hangs") {
				<-over
			}
			return !strings.HasPrefix(point, "/dead")
		})
		if took := time.Since(began); took != viewTimeout {
			t.Errorf("it takes %v, want %v", took, viewTimeout)
		}
		close(over)
		if want := []mounts.Mount{views[1], views[4]}; !slices.Equal(dead, want) {
			t.Errorf("%+v, want %+v", dead, want)
		}
	})
}

// MOUNTPOINT is a view, or what a view shows; another is an error.
func TestStatusChooses(t *testing.T) {
	all := func() []status.Daemon {
		return []status.Daemon{{PID: 1, Views: []status.View{{Source: "/s1", Mountpoint: "/m1"}, {Source: "/s2", Mountpoint: "/m2"}}}}
	}
	for _, path := range []string{"/m2", "/s2/", "/tmp/../m2"} {
		daemons, _, err := choose([]string{path}, all(), nil)
		if err != nil || len(daemons) != 1 || len(daemons[0].Views) != 1 || daemons[0].Views[0].Mountpoint != "/m2" {
			t.Errorf("%s: %+v, %v", path, daemons, err)
		}
	}
	if _, _, err := choose([]string{"/m3"}, all(), nil); err == nil {
		t.Error("/m3 is a view")
	}
	if daemons, dead, err := choose([]string{"/m3"}, nil, []status.View{{Mountpoint: "/m3"}}); err != nil || daemons == nil || len(dead) != 1 {
		t.Errorf("a dead view alone: %#v, %v, %v; want lists, also in JSON", daemons, dead, err)
	}
	silent := append(all(), status.Daemon{PID: 2, Error: "it does not answer"})
	if daemons, _, err := choose([]string{"/m1"}, append(all(), silent[1]), nil); err != nil || len(daemons) != 1 || daemons[0].PID != 1 {
		t.Errorf("/m1: %+v, %v", daemons, err)
	}
	if daemons, _, err := choose([]string{"/m3"}, silent, nil); err != nil || len(daemons) != 1 || daemons[0].PID != 2 {
		t.Errorf("a daemon that does not answer may have it: %+v, %v", daemons, err)
	}
}

// A duration in the log says its unit.
func TestLogOfDurations(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{ReplaceAttr: secondsOf})).Info("x", slog.Duration("in", 1500*time.Millisecond))
	if !strings.Contains(out.String(), `"in_seconds":1.5`) {
		t.Error(out.String())
	}
}
