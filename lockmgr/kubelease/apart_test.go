package kubelease_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// apart is a volume of which each session is another mount's, with a client and a
// watch of its own.
type apart struct {
	*kubelease.Backend // of a process that only looks
	mounts             []*kubelease.Backend
	next               atomic.Int64
}

// newApart lets a few mounts take turns: the suite opens no more sessions than
// that at a time.
func newApart(t *testing.T) *apart {
	name := newName()
	a := &apart{Backend: newBackend(t, name)}
	for range 3 {
		a.mounts = append(a.mounts, newBackend(t, name))
	}
	return a
}

func (a *apart) OpenSession(ctx context.Context, info lockmgr.SessionInfo, ttl time.Duration) (lockmgr.Session, error) {
	return a.mounts[a.next.Add(1)%int64(len(a.mounts))].OpenSession(ctx, info, ttl)
}

func mountsOf(b lockmgr.Backend) []*kubelease.Backend {
	if a, ok := b.(*apart); ok {
		return a.mounts
	}
	return []*kubelease.Backend{b.(*kubelease.Backend)}
}
