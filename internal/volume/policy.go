package volume

import (
	"context"
	"fmt"
	"slices"
)

// settlePolicy compares the mount's policies with the record's, or replaces that. The marker has a
// copy for a new lock service. The next mount finishes an interrupted replacement.
func settlePolicy(ctx context.Context, cfg Config, marker, record identity, stored []byte) error {
	if !slices.Contains(cfg.Policies, record.Policy) {
		if !cfg.SetPolicy {
			e := &PolicyError{Volume: cfg.Namespace + "/" + cfg.Name, Record: record.Policy, Asked: cfg.Policies[0]}
			if record.Policy == cfg.OtherFlock {
				e.Flock = cfg.Flock
			}
			return e
		}
		record.Policy = cfg.Policies[0]
		if err := cfg.Record.ReplaceVolumeRecord(ctx, stored, record.encode(), record.Policy); err != nil {
			return fmt.Errorf("set the volume's policy, which all mounts that live have to enforce (--former-policy): %w", err)
		}
	}
	if marker.Policy != record.Policy {
		marker.Policy = record.Policy
		return replaceMarker(cfg.Source, marker)
	}
	return nil
}

// admits says of a later record whether the mount may go on by it: it differs in the policy, and the
// mount enforces that one too.
func (cfg Config) admits(marker identity) func(stored []byte) bool {
	return func(stored []byte) bool {
		record, err := decode("the record", stored)
		return err == nil && record.sameVolume(marker) && record.Service.Is(marker.Service) && record.Moves == marker.Moves &&
			slices.Contains(cfg.Policies, record.Policy)
	}
}
