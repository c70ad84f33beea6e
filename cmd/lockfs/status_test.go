package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lockfs/lockfs/internal/serve"
)

// The reason is printed whether the daemon is ready or not, and trouble is the exit
// status.
func TestStatus(t *testing.T) {
	bad := func(context.Context) error { return errors.New("no source") }
	good := func(context.Context) error { return nil }
	for _, c := range []struct {
		checks []serve.Check
		out    string
		fails  bool
	}{
		{[]serve.Check{{Name: "ns/v", Ready: good}}, "[+] ns/v: ok\nready\n", false},
		{[]serve.Check{{Name: "ns/v", Ready: bad}}, "[-] ns/v: no source\nnot ready\n", true},
		{[]serve.Check{{Name: "ns/v", Ready: bad, Advisory: true}}, "[!] ns/v: no source\nready\n", true},
	} {
		server := httptest.NewServer(serve.NewMux(func() []serve.Check { return c.checks }))
		var out bytes.Buffer
		err := status(t.Context(), strings.TrimPrefix(server.URL, "http://"), &out)
		server.Close()
		if out.String() != c.out || (err != nil) != c.fails {
			t.Errorf("%q, %v; want %q", &out, err, c.out)
		}
		if c.fails && !errors.As(err, new(statusError)) {
			t.Errorf("the exit status is that of %v", err)
		}
	}
	if err := status(t.Context(), "127.0.0.1:1", &bytes.Buffer{}); err == nil || errors.As(err, new(statusError)) {
		t.Errorf("no daemon: %v", err)
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
