package checkvolume

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// bare is a party without a view: nothing locks.
type bare string

func (b bare) do(_ context.Context, c call) reply {
	if c.Do == "kill view" || c.Do == "mount view" {
		return reply{}
	}
	return perform(string(b), c)
}

// On a bare directory the rules that need locks are seen broken, and those that a local
// disk keeps by itself are not.
func TestBareDirectoryBreaksRules(t *testing.T) {
	dir := bare(t.TempDir())
	var out strings.Builder
	if err := run(t.Context(), dir, dir, &out); !errors.Is(err, ErrBroken) {
		t.Errorf("run: %v, want ErrBroken", err)
	}
	for _, want := range []string{
		`(?m)^1 +one writer.* BROKEN \(10 of 10\): `,
		`(?m)^8 +two names of a file are one lock +BROKEN \(5 of 5\): `,
		`(?m)^15 +a reader finds a name that was missing before +ok \(`,
		`(?m)^29 +one winner: O_EXCL +ok \(`,
		`(?m)^30 .* not tried$`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// A stale client is one that shows an old file.
type stale struct{ bare }

func (s stale) do(ctx context.Context, c call) reply {
	r := s.bare.do(ctx, c)
	if c.Do == "read" && r.Errno == 0 {
		r.Data, r.N = "old", 3
	}
	return r
}

// A reader that sees old bytes breaks the rules of readers.
func TestStaleReader(t *testing.T) {
	dir := bare(t.TempDir())
	var out strings.Builder
	if err := run(t.Context(), dir, stale{dir}, &out); !errors.Is(err, ErrBroken) {
		t.Errorf("run: %v, want ErrBroken", err)
	}
	if n := len(regexp.MustCompile(`(?m)^15 .* BROKEN`).FindAllString(out.String(), -1)); n != 6 {
		t.Errorf("%d rules of readers are broken, want 6:\n%s", n, &out)
	}
}

// failing answers the calls that fails picks, instead of making them.
type failing struct {
	bare
	fails func(c call) reply
}

func (f failing) do(ctx context.Context, c call) reply {
	if r := f.fails(c); r.failed() {
		return r
	}
	return f.bare.do(ctx, c)
}

// Without an answer of etcd, or without space, a rule is tried once more from its first round,
// and is undecided then. A rule that was seen broken stays broken.
func TestUndecided(t *testing.T) {
	dir := bare(t.TempDir())
	renames := 0
	p := failing{dir, func(c call) reply {
		switch {
		case c.Do == "append" && c.Data == "b":
			return reply{Errno: unix.ENOLCK}
		case c.Do == "count":
			return reply{Errno: unix.EDQUOT}
		case c.Do == "claim":
			return reply{Errno: unix.ENOSPC}
		case c.Do == "rename" && c.Path == "saved.new":
			if renames++; renames == 3 {
				return reply{Errno: unix.ENOLCK}
			}
		}
		return reply{}
	}}
	var out strings.Builder
	err := run(t.Context(), p, p, &out)
	if !errors.Is(err, ErrBroken) || !errors.Is(err, ErrUndecided) {
		t.Errorf("run: %v, want both ErrBroken and ErrUndecided", err)
	}
	for _, want := range []string{
		`(?m)^1 +one writer.* BROKEN \(10 of 10\): an open beside a writer: success, want EAGAIN$`,
		`(?m)^6 +appends of both clients are kept +undecided: append: success, ENOLCK`,
		`(?m)^6 +a counter that both count up +undecided: count: EDQUOT`,
		`(?m)^15 +a reader finds a file saved by rename +ok \(`,
		`(?m)^29 +one winner: O_EXCL +undecided: two were told ENOSPC`,
	} {
		if !regexp.MustCompile(want).MatchString(out.String()) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

// A party that has gone breaks no rule.
func TestPartyHasGone(t *testing.T) {
	dir := bare(t.TempDir())
	gone := false
	p := failing{dir, func(c call) reply {
		if gone = gone || c.Do == "link"; gone {
			return reply{Unable: "the view has ended"}
		}
		return reply{}
	}}
	var out strings.Builder
	err := run(t.Context(), p, dir, &out)
	if !errors.Is(err, errUnable) || errors.Is(err, ErrBroken) {
		t.Errorf("run: %v, want %v", err, errUnable)
	}
	if strings.Contains(out.String(), "two names of a file") || !strings.Contains(out.String(), "one writer") {
		t.Errorf("the table should end before the rule of two names:\n%s", &out)
	}
}

// A call without a view changes nothing, not even the mountpoint.
func TestNoView(t *testing.T) {
	s := &Site{Dir: t.TempDir(), Temp: t.TempDir()}
	if err := os.Mkdir(s.view(), 0o755); err != nil {
		t.Fatal(err)
	}
	if r := s.do(t.Context(), call{Do: "save", Path: "f", Data: "x"}); !errors.Is(r.err(), errUnable) {
		t.Errorf("save: %+v, want a party that is unable", r)
	}
	if names, err := os.ReadDir(s.view()); err != nil || len(names) > 0 {
		t.Errorf("the mountpoint has %v, %v", names, err)
	}
}

// A peer reaches nothing but what is below its view.
func TestPathsOfAPeer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	site := &Site{Dir: t.TempDir(), Temp: t.TempDir()}
	go func() { served <- site.Serve(ctx, listener, filepath.Join(site.Temp, "none")) }()
	p := peer(listener.Addr().String())
	for _, c := range []call{
		{Do: "save", Path: "../outside", Data: "x"},
		{Do: "save", Path: "/tmp/outside", Data: "x"},
		{Do: "rename", Path: "f", Path2: "../../outside"},
		{Do: "mount view", Path: "../lockfs-check-1"},
		{Do: "mount view", Path: "lockfs-check-1/.."},
		{Do: "nonsense"},
	} {
		if r := p.do(ctx, c); !r.failed() {
			t.Errorf("%v: %+v, want a refusal", c, r)
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
