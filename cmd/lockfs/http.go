package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"

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

func (h *httpFlag) listen(log *slog.Logger, checks func() []serve.Check) (stop func(), err error) {
	if h.addr == "" {
		return func() {}, nil
	}
	l, err := net.Listen("tcp", h.addr)
	if err != nil {
		return nil, fmt.Errorf("--http: %w", err)
	}
	log.Info("answering HTTP", slog.String("address", l.Addr().String()))
	mux := serve.NewMux(checks)
	mux.Handle("GET /metrics", h.metrics().Handler(log))
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Warn("the HTTP server has failed", slog.Any("error", err))
		}
	}()
	return func() { server.Close(); <-ended }, nil
}
