package main

import (
	"context"
	"time"

	"github.com/lockfs/lockfs/internal/kubetest"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// kubernetes is the system whose locks are Leases.
const kubernetes = "kubernetes"

// apiServer has the Leases of this run.
type apiServer struct {
	*kubetest.Server
	space string
}

func startAPIServer() (*apiServer, error) {
	s, err := kubetest.Start()
	if err != nil {
		return nil, err
	}
	space, err := s.NewNamespace()
	if err != nil {
		s.Stop()
		return nil, err
	}
	s.Config.QPS, s.Config.Burst = 1000, 1000 // the server is measured, not our limits
	return &apiServer{s, space}, nil
}

// manager returns a mount's Manager, with its own connection and watch.
func (a *apiServer) manager(ctx context.Context, volume string, ttl time.Duration) (*manager, error) {
	client, err := kubelease.NewClient(a.Config)
	if err != nil {
		return nil, err
	}
	b, err := kubelease.New(kubelease.Config{Client: client, Namespace: namespace, Name: volume, LeaseNamespace: a.space})
	if err != nil {
		return nil, err
	}
	m, err := manage(ctx, b, ttl, lockmgr.SessionInfo{Node: "bench"})
	if err != nil {
		b.Close()
		return nil, err
	}
	m.closeBackend = b.Close
	return m, nil
}

func (a *apiServer) close() {
	a.DropNamespace(a.space)
	a.Stop()
}
