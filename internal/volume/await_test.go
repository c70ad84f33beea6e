package volume

import "testing"

// A look whether the volume opens files leaves nothing in it.
func TestAwait(t *testing.T) {
	source := t.TempDir()
	Await(source)
	if got := names(t, source); len(got) != 0 {
		t.Errorf("SOURCE has %q", got)
	}
}
