package checkvolume

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
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
		if r := p.do(ctx, c); r.Error == "" {
			t.Errorf("%v: %+v, want a refusal", c, r)
		}
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
