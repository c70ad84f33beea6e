package etcdlock_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
)

var adoptions atomic.Int64

func TestAdoption(t *testing.T) {
	t.Parallel()
	lockmgrtest.Adoption(t, func(t *testing.T) func() lockmgr.Backend {
		name := fmt.Sprint("adoption-", adoptions.Add(1))
		return func() lockmgr.Backend { return newBackend(t, dial(t), name) }
	})
}
