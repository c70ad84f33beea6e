package volume

import (
	"errors"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/policy"
)

const (
	policyA = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	policyB = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func markerPolicy(t *testing.T, source string) string {
	t.Helper()
	id, err := readMarker(source)
	if err != nil {
		t.Fatal(err)
	}
	return id.Policy
}

func TestAnotherPolicyIsRefused(t *testing.T) {
	store := &memStore{}
	cfg := config(t.TempDir(), store)
	cfg.Policy = policyA
	mustCheck(t, cfg)
	mustCheck(t, cfg)
	before := string(store.record)
	for _, asked := range []string{policyB, noPolicy} {
		cfg.Policy = asked
		_, err := Check(t.Context(), cfg)
		var pe *PolicyError
		if !errors.As(err, &pe) || pe.Record != policyA || pe.Asked != asked {
			t.Fatalf("Check = %v, want a *PolicyError", err)
		}
		for _, says := range []string{policyA[:19], asked[:19], "--set-policy"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q is not in: %v", says, err)
			}
		}
		t.Log(err)
	}
	if string(store.record) != before || markerPolicy(t, cfg.Source) != policyA {
		t.Errorf("the record is %s, was %s; the marker has %s", store.record, before, markerPolicy(t, cfg.Source))
	}
}

// Mounts that differ in --flock alone are told so. A mount without flocks is accepted beside both.
func TestAnotherFlockIsRefused(t *testing.T) {
	for _, has := range policy.Flocks {
		store := &memStore{}
		rules, err := policy.Parse(policy.Source{Text: "*.log nolock"})
		if err != nil {
			t.Fatal(err)
		}
		mount := config(t.TempDir(), store)
		mount.Policy, mount.Flock, mount.OtherFlock = rules.Digest(has), has, rules.Digest(has.Other())
		mustCheck(t, mount)
		mustCheck(t, mount)
		before := string(store.record)
		other := mount
		other.Policy, other.Flock, other.OtherFlock = mount.OtherFlock, has.Other(), mount.Policy
		_, err = Check(t.Context(), other)
		if !errors.As(err, new(*PolicyError)) {
			t.Fatalf("a mount with %s beside %s: Check = %v, want a *PolicyError", other.Flock, has, err)
		}
		for _, says := range []string{"has --flock " + string(has), "mount has --flock " + string(has.Other()), "mount with --flock " + string(has) + ",", "--set-policy"} {
			if !strings.Contains(err.Error(), says) {
				t.Errorf("%q is not in: %v", says, err)
			}
		}
		rulesToo := other
		rulesToo.Policy, rulesToo.OtherFlock = (*policy.Policy)(nil).Digest(other.Flock), (*policy.Policy)(nil).Digest(has)
		if _, err := Check(t.Context(), rulesToo); !errors.As(err, new(*PolicyError)) || strings.Contains(err.Error(), "mount with --flock") {
			t.Errorf("other rules: Check = %v, want a *PolicyError about the rules", err)
		}
		for _, cfg := range []Config{mount, other} {
			cfg.Flock = ""
			mustCheck(t, cfg)
		}
		rulesToo.Flock = ""
		if _, err := Check(t.Context(), rulesToo); !errors.As(err, new(*PolicyError)) {
			t.Errorf("other rules without flocks: Check = %v, want a *PolicyError", err)
		}
		if string(store.record) != before || markerPolicy(t, mount.Source) != mount.Policy {
			t.Errorf("the record is %s, was %s; the marker has %s", store.record, before, markerPolicy(t, mount.Source))
		}
		other.SetPolicy = true
		mustCheck(t, other)
	}
}

func TestSetPolicy(t *testing.T) {
	store := &memStore{}
	cfg := config(t.TempDir(), store)
	id := mustCheck(t, cfg)
	cfg.Policy, cfg.SetPolicy = policyA, true
	store.inUse = true
	if _, err := Check(t.Context(), cfg); !errors.Is(err, errInUse) || markerPolicy(t, cfg.Source) != noPolicy {
		t.Fatalf("in use: Check = %v, the marker has %s", err, markerPolicy(t, cfg.Source))
	}
	store.inUse = false
	if got := mustCheck(t, cfg); got != id {
		t.Errorf("the volume's id is %s, was %s", got, id)
	}
	store.inUse = true // as it is when the other nodes come with the same flag
	mustCheck(t, cfg)
	cfg.SetPolicy = false
	mustCheck(t, cfg)
	if got := names(t, cfg.Source); len(got) != 1 || markerPolicy(t, cfg.Source) != policyA {
		t.Errorf("SOURCE has %q, the marker %s", got, markerPolicy(t, cfg.Source))
	}
}

// A volume of before there were policies has the policy without rules.
func TestVolumeWithoutPolicy(t *testing.T) {
	store := &memStore{}
	cfg := config(t.TempDir(), store)
	mustCheck(t, cfg)
	old, err := readMarker(cfg.Source)
	if err != nil {
		t.Fatal(err)
	}
	old.Policy = ""
	if err := replaceMarker(cfg.Source, old); err != nil {
		t.Fatal(err)
	}
	store.record = old.encode()
	if strings.Contains(string(store.record), "policy") {
		t.Fatalf("not as it was: %s", store.record)
	}
	mustCheck(t, cfg)
	cfg.Policy = policyA
	if _, err := Check(t.Context(), cfg); !errors.As(err, new(*PolicyError)) {
		t.Errorf("Check = %v, want a *PolicyError", err)
	}
	cfg.SetPolicy = true
	mustCheck(t, cfg)
}

// The record decides, and a marker that says otherwise follows it; a lock
// service that has lost its record learns the policy from the marker.
func TestMarkerFollowsRecord(t *testing.T) {
	cfg := config(t.TempDir(), &memStore{})
	cfg.Policy = policyA
	mustCheck(t, cfg)
	late, err := readMarker(cfg.Source)
	if err != nil {
		t.Fatal(err)
	}
	late.Policy = policyB
	if err := replaceMarker(cfg.Source, late); err != nil {
		t.Fatal(err)
	}
	mustCheck(t, cfg)
	cfg.Record.(*memStore).record = nil
	cfg.Policy = policyB
	if _, err := Check(t.Context(), cfg); !errors.As(err, new(*PolicyError)) {
		t.Errorf("a lock service without the record: Check = %v, want a *PolicyError", err)
	}
	cfg.Policy = policyA
	mustCheck(t, cfg)
}
