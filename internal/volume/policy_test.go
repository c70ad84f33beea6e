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
	cfg.Policies = []string{policyA}
	mustCheck(t, cfg)
	mustCheck(t, cfg)
	before := string(store.record)
	for _, asked := range []string{policyB, noRules} {
		cfg.Policies = []string{asked}
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
		mount.Policies, mount.Flock, mount.OtherFlock = []string{rules.Digest(has)}, has, rules.Digest(has.Other())
		mustCheck(t, mount)
		mustCheck(t, mount)
		before := string(store.record)
		other := mount
		other.Policies, other.Flock, other.OtherFlock = []string{mount.OtherFlock}, has.Other(), mount.Policies[0]
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
		rulesToo.Policies, rulesToo.OtherFlock = []string{(*policy.Policy)(nil).Digest(other.Flock)}, (*policy.Policy)(nil).Digest(has)
		if _, err := Check(t.Context(), rulesToo); !errors.As(err, new(*PolicyError)) || strings.Contains(err.Error(), "mount with --flock") {
			t.Errorf("other rules: Check = %v, want a *PolicyError about the rules", err)
		}
		for _, cfg := range []Config{mount, other} {
			cfg.Flock, cfg.Policies = "", []string{cfg.Policies[0], cfg.OtherFlock} // as lockfs exec
			mustCheck(t, cfg)
		}
		rulesToo.Flock = ""
		if _, err := Check(t.Context(), rulesToo); !errors.As(err, new(*PolicyError)) {
			t.Errorf("other rules without flocks: Check = %v, want a *PolicyError", err)
		}
		if string(store.record) != before || markerPolicy(t, mount.Source) != mount.Policies[0] {
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
	cfg.Policies, cfg.SetPolicy = []string{policyA}, true
	store.inUse = true
	if _, err := Check(t.Context(), cfg); !errors.Is(err, errInUse) || markerPolicy(t, cfg.Source) != noRules {
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
	cfg.Policies = []string{policyA}
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
	cfg.Policies = []string{policyA}
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
	cfg.Policies = []string{policyB}
	if _, err := Check(t.Context(), cfg); !errors.As(err, new(*PolicyError)) {
		t.Errorf("a lock service without the record: Check = %v, want a *PolicyError", err)
	}
	cfg.Policies = []string{policyA}
	mustCheck(t, cfg)
}

// The policy changes in two rolling updates: every mount enforces both, then one.
func TestPolicyChangesAmongMounts(t *testing.T) {
	store := &memStore{}
	former := config(t.TempDir(), store)
	former.Policies = []string{policyA}
	mustCheck(t, former)
	store.inUse = true
	both, next := former, former
	both.Policies = []string{policyB, policyA}
	next.Policies, next.SetPolicy = []string{policyB}, true

	store.enforced = []string{policyA}
	mustCheck(t, both)
	admits := store.admits
	mustCheck(t, former)
	if _, err := Check(t.Context(), next); !errors.Is(err, errInUse) || markerPolicy(t, next.Source) != policyA {
		t.Fatalf("beside mounts of the former policy: %v, the marker has %s", err, markerPolicy(t, next.Source))
	}
	if !admits(store.record) {
		t.Errorf("%s is not admitted", store.record)
	}
	store.enforced = both.Policies
	mustCheck(t, next)
	if markerPolicy(t, next.Source) != policyB {
		t.Errorf("the marker has %s", markerPolicy(t, next.Source))
	}
	mustCheck(t, both)
	if _, err := Check(t.Context(), former); !errors.As(err, new(*PolicyError)) {
		t.Errorf("a late mount of the former policy: %v", err)
	}
	if store.admits(store.record) || !admits(store.record) {
		t.Errorf("%s is admitted by the former policy, or not by both", store.record)
	}
	moved, err := decode("the record", store.record)
	if err != nil {
		t.Fatal(err)
	}
	moved.Moves++
	if admits(moved.encode()) || admits([]byte("damaged")) {
		t.Error("a volume that has moved is admitted, or a damaged record")
	}
}
