package volume

import (
	"context"
	"fmt"
)

// settlePolicy compares the policy of the volume, which is that of the record,
// with the mount's, or replaces it. The marker keeps it for the day the lock
// service is new: what a killed mount left undone there is done by the next.
func settlePolicy(ctx context.Context, cfg Config, marker, record identity, stored []byte) error {
	if record.Policy != cfg.Policy {
		if !cfg.SetPolicy {
			return &PolicyError{Volume: cfg.Namespace + "/" + cfg.Name, Record: record.Policy, Asked: cfg.Policy}
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
