package lockmgr_test

import (
	"testing"

	"github.com/lockfs/lockfs/lockmgr"
)

// All backends have one rule for which requests block which.
func TestBlocks(t *testing.T) {
	first, second := lockmgr.NewAcquisitionID(), lockmgr.NewAcquisitionID()
	grant := func(k lockmgr.Key, m lockmgr.Mode) lockmgr.Grant {
		return lockmgr.Grant{Key: k, Mode: m, AcquisitionID: first}
	}
	const alone, together = lockmgr.Exclusive, lockmgr.Shared
	for name, test := range map[string]struct {
		earlier, later lockmgr.Grant
		upgrades       []lockmgr.AcquisitionID
		want           bool
	}{
		"one file":                    {grant(file("d/f"), alone), grant(file("d/f"), alone), nil, true},
		"another file":                {grant(file("d/f"), alone), grant(file("d/g"), alone), nil, false},
		"its directory":               {grant(tree("d"), alone), grant(file("d/f"), alone), nil, true},
		"readers":                     {grant(file("d/f"), together), grant(file("d/f"), together), nil, false},
		"a reader before a writer":    {grant(file("d/f"), together), grant(file("d/f"), alone), nil, true},
		"a writer before a reader":    {grant(file("d/f"), alone), grant(file("d/f"), together), nil, true},
		"what it upgrades":            {grant(file("d/f"), together), grant(file("d/f"), alone), []lockmgr.AcquisitionID{second, first}, false},
		"what another upgrades":       {grant(file("d/f"), together), grant(file("d/f"), alone), []lockmgr.AcquisitionID{second}, true},
		"an upgrade in the directory": {grant(file("d/f"), together), grant(tree("d"), alone), []lockmgr.AcquisitionID{first}, true},
	} {
		if got := test.earlier.Blocks(test.later, test.upgrades); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// An upgrade of a key waits for ever for an owner that wants the key exclusively, and for nobody else.
func TestDeadlocks(t *testing.T) {
	req := lockmgr.AcquireRequest{
		Keys:     []lockmgr.Key{file("f"), file("g")},
		Upgrades: []lockmgr.Grant{{Key: file("f"), Mode: lockmgr.Shared}},
	}
	for name, test := range map[string]struct {
		earlier lockmgr.Grant
		want    bool
	}{
		"a writer of what it upgrades": {lockmgr.Grant{Key: file("f")}, true},
		"a reader of it":               {lockmgr.Grant{Key: file("f"), Mode: lockmgr.Shared}, false},
		"a writer of another key":      {lockmgr.Grant{Key: file("g")}, false},
	} {
		if got := req.Deadlocks(test.earlier); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
