// Package semantics proves the rules of docs/SEMANTICS.md with real mounts, on one machine
// and on network volumes. Which file proves which rule is in rules_test.go.
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
