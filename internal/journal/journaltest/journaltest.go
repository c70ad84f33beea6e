// Package journaltest has journals for tests.
package journaltest

import (
	"testing"

	"github.com/lockfs/lockfs/internal/journal"
)

// Part returns a part of a new journal, which is complete, and what reads it as it is then; nil: nothing
// is recorded.
func Part(t testing.TB) (part *journal.Part, read func() *journal.Records) {
	t.Helper()
	f, err := journal.Create()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	j, err := journal.New(f)
	if err != nil {
		t.Fatal(err)
	}
	const name = "part"
	part = j.Part(name)
	if err := part.Complete(); err != nil {
		t.Fatal(err)
	}
	return part, func() *journal.Records {
		t.Helper()
		parts, err := journal.Read(f)
		if err != nil {
			t.Error(err)
		}
		return parts[name]
	}
}
