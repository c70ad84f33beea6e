// Package semantics proves the rules of docs/SEMANTICS.md with real mounts, on one machine
// and on network volumes. Each test names its rule. In the order of the rules:
//
//	 1-5   exclusion, mixed, interrupts
//	 6-9   replace, links, names, stale
//	10-13  fenced, loss, suspend, successor
//	14     volume_refused, folding
//	15     fresh, clients, volume, numbers, requests
//	16-18  attack, attr, fidelity, rights
//	19     sync, full, volume_sync
//	20-24  lockattr, policy_view, readlocks
//	29-30  claim, remount
//
// What commands do is in package commands, what 'lockfs serve' does in package daemon, and
// what faults of the lock service do in package faults.
package semantics

import (
	"os"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m)) }
