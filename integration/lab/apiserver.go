package lab

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/internal/kubetest"
)

// volumesInLeases makes the names of volumes in one API server differ.
var volumesInLeases atomic.Int64

// apiServer is the API server of all tests with Leases.
type apiServer struct {
	*kubetest.Server
	KubeconfigFile string
	inUse          sync.RWMutex
	err            error
}

var startServer = sync.OnceValue(func() *apiServer {
	s := &apiServer{}
	if s.Server, s.err = kubetest.Start(); s.err == nil {
		serverStarted.Store(s)
		s.KubeconfigFile, s.err = s.Kubeconfig()
	}
	return s
})

var serverStarted atomic.Pointer[apiServer]

// sharedServer is the API server, for this test alone if that is needed.
func sharedServer(t *testing.T, alone bool) *apiServer {
	t.Helper()
	s := startServer()
	if s.err != nil {
		t.Fatal(s.err)
	}
	if alone {
		s.inUse.Lock()
		t.Cleanup(s.inUse.Unlock)
	} else {
		s.inUse.RLock()
		t.Cleanup(s.inUse.RUnlock)
	}
	return s
}

func stopServer() {
	if s := serverStarted.Load(); s != nil {
		s.Stop()
	}
}

func (s *apiServer) namespace(t *testing.T) string {
	t.Helper()
	name, err := s.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.DropNamespace(name) })
	return name
}
