// Package commands runs the commands of lockfs as people do: docs/COMMANDS.md.
package commands

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
