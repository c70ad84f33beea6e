// Package faults makes faults while programs are at work on several mounts, and checks the
// history of all their calls: docs/FAULTS.md.
package faults

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/history"
	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, history.Writer)) }
