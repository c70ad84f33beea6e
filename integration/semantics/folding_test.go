package semantics

import (
	"os"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

// Where two names are of one file, each would have a lock of its own, and two programs
// would write to it: such a directory is refused, and left as it was.
func TestFoldedNames(t *testing.T) {
	t.Parallel()
	for says, fold := range map[string]func(string) string{
		`"file" and "FILE"`:      strings.ToLower,
		`"\u00e9" and "e\u0301"`: strings.NewReplacer("e\u0301", "\u00e9").Replace,
		"":                       strings.Clone,
	} {
		t.Run(says, func(t *testing.T) {
			v := lab.NewVolume(t, "--embedded")
			v.Folding(fold)
			if says == "" {
				v.Mount("a")
				return
			}
			m := v.Refused()
			lines := strings.Split(strings.TrimSpace(m.Log.String()), "\n")
			if status := m.Cmd.ProcessState.ExitCode(); status != 2 || !strings.Contains(lines[len(lines)-1], says) {
				t.Errorf("exit status %d, %s; want 2 and %s", status, m.Log, says)
			}
			if left, err := os.ReadDir(v.Source); err != nil || len(left) != 0 {
				t.Errorf("it holds %v, %v", left, err)
			}
		})
	}
}
