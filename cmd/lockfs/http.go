package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/metrics"
	"github.com/lockfs/lockfs/internal/serve"
)

// httpFlag says where the daemon serves /healthz, /readyz and /metrics.
type httpFlag struct {
	addr     string
	registry *metrics.Registry // see metrics
}

// metrics returns what /metrics serves, or nil without --http.
func (h *httpFlag) metrics() *metrics.Registry {
	if h.registry == nil && h.addr != "" {
		h.registry = metrics.New(buildVersion())
	}
	return h.registry
}

func (h *httpFlag) register(fs *pflag.FlagSet) {
	fs.StringVar(&h.addr, "http", "", "`address` of /healthz, /readyz and /metrics, such as :9808 (default: none)")
}

func (h *httpFlag) check() error { return checkAddress("http", h.addr, ":9808") }

// checkAddress refuses an address that no program can listen at. "" is not given.
func checkAddress(flag, address, example string) error {
	if address == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	if err != nil {
		return usage(fmt.Errorf("--%s %s: want HOST:PORT or :PORT, such as %s", flag, address, example))
	}
	return nil
}

// listen answers until stop. A daemon that takes over waits for the port of the one before it.
func (h *httpFlag) listen(log *slog.Logger, checks func() []serve.Check, takesOver bool) (stop func(), err error) {
	if h.addr == "" {
		return func() {}, nil
	}
	l, inUse := net.Listen("tcp", h.addr)
	if inUse != nil && !(takesOver && errors.Is(inUse, unix.EADDRINUSE)) {
		return nil, fmt.Errorf("--http: %w", inUse)
	}
	mux := serve.NewMux(checks)
	mux.Handle("GET /metrics", h.metrics().Handler(log))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	waiting, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		if l == nil {
			log.Warn("the address of --http is in use; it is answered when the former daemon has ended", slog.Any("error", inUse))
			if l = awaitPort(waiting, h.addr); l == nil {
				return
			}
		}
		log.Info("answering HTTP", slog.String("address", l.Addr().String()))
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("the HTTP server has failed", slog.Any("error", err))
		}
	}()
	return func() { cancel(); server.Close(); <-ended }, nil
}

// awaitPort returns nil when ctx ends.
func awaitPort(ctx context.Context, addr string) net.Listener {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if l, err := net.Listen("tcp", addr); err == nil {
			return l
		}
	}
}
