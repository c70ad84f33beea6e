// Package config reads the file that says which volumes a node serves.
//
// A file is taken whole or not at all: each mistake is named with its line and
// what to do about it, and none of the volumes is served, or served otherwise,
// before all of them are right. docs/CONFIG.md describes the fields.
package config

import (
	"cmp"
	"strings"
	"time"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/policy"
)

// File is a configuration.
type File struct {
	Volumes []Volume // with distinct names and directories
}

// Volume is one volume to serve. reflect.DeepEqual says whether two are served alike.
type Volume struct {
	Namespace, Name    string
	Source, Mountpoint string // absolute

	Backend        string   // BackendEtcd or BackendKubernetes
	Endpoints      []string // of etcd
	LeaseNamespace string   // where the Lease objects are; "" with etcd
	Credentials    string   // name of a directory; "": none

	TTL, Wait, NameWait, SuspendWait, Keep time.Duration
	Scope                                  policy.Scope
	Sync                                   fs.Sync // one of Syncs
	ReadLocks                              bool
	Flock                                  policy.Flock // one of Flocks

	AcceptVolume bool // although it breaks rules

	Rules     []string // of the policy, as policy.Parse reads them
	SetPolicy bool

	// Former is enforced too, while the policy changes.
	Former struct {
		Given  bool
		Listed bool // Rules are given; false: as the Volume's
		Rules  []string
		Flock  policy.Flock // empty: as Flock
	}
}

// The backends.
const (
	BackendEtcd       = "etcd"
	BackendKubernetes = "kubernetes"
)

// SyncAuto is fs.SyncAlways on NFS, fs.SyncClose on another network file system, else
// fs.SyncNever.
const SyncAuto fs.Sync = "auto"

// Syncs are the words for when bytes have to be on the volume.
var Syncs = []fs.Sync{SyncAuto, fs.SyncClose, fs.SyncAlways, fs.SyncNever}

// The times of a Volume, or of a command, that does not say otherwise.
const (
	DefaultTTL      = 15 * time.Second // how long a lock outlives a mount that is cut off or killed
	DefaultWait     = 30 * time.Second // how long an open waits for a lock
	DefaultNameWait = time.Second      // how long a call that cannot queue tries
	DefaultKeep     = 2 * time.Second  // how long a mount keeps a lock that nobody uses
)

// ID identifies the volume in the file.
func (v *Volume) ID() string { return v.Namespace + "/" + v.Name }

// Policy returns the policy of the rules.
func (v *Volume) Policy() *policy.Policy { return policyOf(v.Rules) }

// FormerTerms returns what is enforced besides, or nil.
func (v *Volume) FormerTerms() *policy.Terms {
	if !v.Former.Given {
		return nil
	}
	rules := v.Former.Rules
	if !v.Former.Listed {
		rules = v.Rules
	}
	return &policy.Terms{Policy: policyOf(rules), Flock: cmp.Or(v.Former.Flock, v.Flock)}
}

func policyOf(rules []string) *policy.Policy {
	p, err := policy.Parse(policy.Source{Text: strings.Join(rules, "\n")})
	if err != nil {
		panic(err) // Parse has read each of them
	}
	return p
}

// defaults is a Volume without any field given.
func defaults() Volume {
	return Volume{
		Namespace: "default", Backend: BackendEtcd, TTL: DefaultTTL,
		Wait: DefaultWait, NameWait: DefaultNameWait, Keep: DefaultKeep, Scope: policy.ScopeAuto, Sync: SyncAuto, Flock: policy.FlockLocal,
	}
}
