// Package programs runs programs that people use on views, and compares what a view shows
// with what a plain directory does.
package programs

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) {
	os.Exit(lab.Main(m, history.Writer, lab.Role{Env: actorEnv, Serve: serveActor}))
}
