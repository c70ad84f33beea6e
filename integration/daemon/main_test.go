// Package daemon runs 'lockfs serve', the daemon of a node of Kubernetes.
package daemon

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
