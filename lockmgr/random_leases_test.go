package lockmgr_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/internal/longtest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// TestRandomFaults with Leases: the machines' requests to the API server, and the events of its
// watches, are late or lost. A history takes many seconds.
func TestRandomFaultsOfLeases(t *testing.T) {
	longtest.Only(t)
	seeds, sum := 0, make(map[string]int)
	for seed := range longtest.Seeds(t, 1, 10) {
		seeds++
		synctest.Test(t, func(t *testing.T) {
			svc := newAPIServer(t)
			defer svc.Close()
			newChaos(t, seed, sum, svc).run()
		})
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	t.Logf("%d histories: %v", seeds, sum)
	for _, what := range []string{"written", "suspended", "lost", "broken", "cancelled", "kept", "recalled while idle", "directory recalled in use"} {
		if sum[what] == 0 {
			t.Errorf("none was %s", what)
		}
	}
}

// apiServer is an API server, seen by a client without faults.
type apiServer struct {
	*kubelease.Backend
	t      *testing.T
	server *kubetest.Memory
	mounts []*kubelease.Backend
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{t: t, server: kubetest.NewMemory()}
	s.Backend = s.backend(nil, func(server http.RoundTripper) http.RoundTripper { return server })
	return s
}

func (s *apiServer) backend(m *machine, way func(http.RoundTripper) http.RoundTripper) *kubelease.Backend {
	s.t.Helper()
	client, err := kubelease.NewClient(s.server.Config(way))
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := kubelease.Config{Client: client, Namespace: "chaos", Name: "volume", Clock: bubbleClock{}}
	if m != nil {
		cfg.Clock = m
	}
	b, err := kubelease.New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *apiServer) mount(m *machine) lockmgr.Backend {
	b := s.backend(m, func(server http.RoundTripper) http.RoundTripper { return wire{server, m} })
	s.mounts = append(s.mounts, b)
	return b
}

func (s *apiServer) Close() {
	for _, b := range s.mounts {
		b.Close()
	}
	s.Backend.Close()
	<-time.After(3 * ttl) // messages that are late
}

func (s *apiServer) Disconnect() { s.server.SetDown(true) }
func (s *apiServer) Connect()    { s.server.SetDown(false) }

func (s *apiServer) Count() int {
	entries, err := s.Entries(context.Background(), "")
	if err != nil {
		s.t.Error(err)
	}
	return len(entries)
}

// wire carries the requests of a machine, and the events of its watches.
type wire struct {
	server http.RoundTripper
	m      *machine
}

var errLost = errors.New("lost")

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	type answer struct {
		*http.Response
		err error
	}
	if r.Body != nil { // the caller may take it back
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body.Close()
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	watches := r.URL.Query().Get("watch") != ""
	done := make(chan answer, 1)
	go func() {
		a := answer{err: errLost}
		what := r.Method + " " + path.Base(r.URL.Path)
		w.m.runs()
		if lost := !watches && w.m.meets(what+" sent"); w.m.carry() && !lost {
			sent := r
			if !watches { // it is carried out even if nobody waits
				sent = r.WithContext(context.WithoutCancel(r.Context()))
			}
			a.Response, a.err = w.server.RoundTrip(sent)
			if lost = !watches && w.m.meets(what+" answered"); a.err == nil && (!w.m.carry() || lost) {
				a.Response.Body.Close()
				a = answer{err: errLost}
			}
		}
		w.m.runs()
		done <- a
	}()
	select {
	case a := <-done:
		if a.err == nil && watches {
			a.Body = w.events(r.Context(), a.Body)
		}
		return a.Response, a.err
	case <-r.Context().Done():
		go func() {
			if a := <-done; a.err == nil {
				a.Body.Close()
			}
		}()
		return nil, r.Context().Err()
	}
}

// events carries those of a watch, in their order. When one is lost, the connection is.
func (w wire) events(ctx context.Context, from io.ReadCloser) io.ReadCloser {
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() { in.CloseWithError(ctx.Err()) })
	go func() {
		defer from.Close()
		for lines := bufio.NewReader(from); ; {
			line, err := lines.ReadBytes('\n')
			if err == nil {
				w.m.runs()
				if lost := w.m.meets("event"); !w.m.carry() || lost {
					err = errLost
				}
				w.m.runs()
			}
			if err == nil {
				_, err = in.Write(line)
			}
			if err != nil {
				in.CloseWithError(err)
				return
			}
		}
	}()
	return out
}
