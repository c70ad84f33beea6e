// Package handover upgrades daemons while programs are at work on their views.
package handover

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, history.Writer)) }
