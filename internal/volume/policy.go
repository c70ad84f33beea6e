package volume

import (
	"context"
	"fmt"
)

// settlePolicy compares the mount's policy with the record's, or replaces it. The marker has a
// copy for a new lock service. The next mount finishes an interrupted replacement.
func settlePolicy(ctx context.Context, cfg Config, marker, record identity, stored []byte) error {
	if cfg.Flock == "" && record.Policy == cfg.OtherFlock {
		cfg.Policy = cfg.OtherFlock
	}
	if record.Policy != cfg.Policy {
		if !cfg.SetPolicy {
			e := &PolicyError{Volume: cfg.Namespace + "/" + cfg.Name, Record: record.Policy, Asked: cfg.Policy}
			if record.Policy == cfg.OtherFlock {
				e.Flock = cfg.Flock
			}
			return e
		}
		record.Policy = cfg.Policy
		if err := cfg.Record.ReplaceVolumeRecord(ctx, stored, record.encode()); err != nil {
			return fmt.Errorf("set the volume's policy: %w", err)
		}
	}
	if marker.Policy != cfg.Policy {
		marker.Policy = cfg.Policy
		return replaceMarker(cfg.Source, marker)
	}
	return nil
}
