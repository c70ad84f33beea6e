package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/lockfs/lockfs/internal/embedetcd"
	"github.com/lockfs/lockfs/internal/serve"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// connect connects to the flags' lock service, or to source's embedded etcd, which it starts or
// joins.
func (v *volumeFlags) connect(ctx context.Context, source string, log *slog.Logger) (b serve.Backend, closeAll func(), err error) {
	if v.inKubernetes() {
		return v.dialLeases(v.namespace, v.name, v.leaseNamespace, log)
	}
	dial := v.dial
	dial.Logger = log
	if len(dial.Endpoints) > 0 {
		return v.dialBackend(ctx, dial, !v.remote())
	}
	server, err := startEmbedded(ctx, source, log)
	if err != nil {
		return nil, nil, err
	}
	dial.Endpoints = []string{server.Endpoint()}
	client, closeClient, err := v.dialBackend(ctx, dial, !v.remote())
	if err != nil {
		server.Close()
		return nil, nil, err
	}
	return &embedded{client, server}, func() { closeClient(); server.Close() }, nil
}

// embedded is a Backend whose lock service this process may have started.
type embedded struct {
	*etcdlock.Backend
	*embedetcd.Server
}

func startEmbedded(ctx context.Context, source string, log *slog.Logger) (*embedetcd.Server, error) {
	dir, err := embeddedDir(source)
	if err != nil {
		return nil, err
	}
	server, err := embedetcd.Start(ctx, embedetcd.Config{Dir: dir, Source: source, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("embedded etcd: %w", err)
	}
	return server, nil
}

func stateDir() (string, error) {
	dir, err := embedetcd.StateDir()
	return dir, usage(err)
}

func embeddedDir(source string) (string, error) {
	state, err := stateDir()
	if err != nil {
		return "", err
	}
	return embedetcd.DirFor(state, source)
}

// dialBackend connects to a running etcd; embedded: to this machine's own.
func (v *volumeFlags) dialBackend(ctx context.Context, dial etcdlock.DialConfig, embedded bool) (*etcdlock.Backend, func(), error) {
	machine := ""
	if embedded {
		var err error
		if machine, err = os.Hostname(); err != nil {
			return nil, nil, err
		}
	}
	client, err := etcdlock.Dial(ctx, dial)
	if err != nil {
		if !embedded && errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%w; check the endpoints, the certificates and the network", err)
		}
		return nil, nil, err
	}
	b, err := etcdlock.New(etcdlock.Config{
		Client: client, Renewals: &dial, Namespace: v.namespace, Name: v.name, Machine: machine, Logger: dial.Logger,
	})
	if err != nil {
		_ = client.Close()
		return nil, nil, err
	}
	return b, func() { b.Close(); _ = client.Close() }, nil
}
