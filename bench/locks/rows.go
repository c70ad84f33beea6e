package main

import (
	"context"
	"fmt"
	"time"

	"github.com/lockfs/lockfs/bench/internal/report"
)

// row is a group of lines of the table that are measured together.
type row struct {
	name    string
	nodes   int // of etcd
	systems []string
	rounds  int  // at most; 0 if -rounds alone says how many
	view    bool // it mounts one
	lines   []line

	// measure returns a figure for each line.
	measure func(ctx context.Context, b *bench, c *cluster, system string) ([]float64, error)
}

// line is one line of the table.
type line struct {
	name    string // appended to the row's name
	unit    string
	targets []report.Target
}

// The units of figures.
const (
	micros    = "µs"
	millis    = "ms"
	perSecond = "/s"
	ttls      = "TTL"
	seconds   = "s"
	percent   = "%"
	kibibytes = "KiB"
)

// systemNames are what can be compared, in the order of the table's columns.
var systemNames = []string{"txn", "mutex", "leases", "session", "lockfs", "keeping", kubernetes, "kernel", "local", "rule"}

// allRows is the table.
func allRows() []row {
	var rows []row
	for _, nodes := range []int{1, 3} {
		for _, callers := range []int{1, 8, 64} {
			rows = append(rows, cycleRow(nodes, callers))
		}
		for _, waiters := range []int{2, 16, 128} {
			rows = append(rows, handoffRow(nodes, waiters))
		}
	}
	for _, n := range []int{0, 1000} {
		rows = append(rows, recallRow(n))
	}
	rows = append(rows, recallIdleRow(), turnsRow(), keptRow(500), keptRow(10000))
	rows = append(rows, takeoverRows()...)
	for _, n := range []int{100, 1000, 10000, 50000} {
		rows = append(rows, heldRow(n))
	}
	rows = append(rows, leaseRows()...)
	rows = append(rows, flockRows()...)
	return rows
}

// count is "1 node", "3 nodes".
func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

func cycleRow(nodes, callers int) row {
	speed := line{unit: perSecond}
	switch callers {
	case 1:
		speed = line{unit: micros, targets: []report.Target{report.Most("txn", 1.15)}}
	case 64:
		speed.targets = []report.Target{report.Least("mutex", 2.5)}
	}
	return row{
		name: fmt.Sprintf("cycle, %s, %s", count(nodes, "node"), count(callers, "caller")), nodes: nodes, systems: []string{"txn", "mutex", "leases", "session", "lockfs"},
		lines: []line{
			speed,
			{name: "commits of a cycle"},
			{name: "client's CPU of a cycle", unit: micros},
			{name: "etcd's CPU of a cycle", unit: micros},
		},
		measure: cycles(callers),
	}
}

func handoffRow(nodes, waiters int) row {
	return row{
		name: fmt.Sprintf("handoff, %s, %s", count(nodes, "node"), count(waiters, "waiter")), nodes: nodes,
		systems: []string{"mutex", "lockfs"}, rounds: 5,
		lines: []line{
			{name: "p50", unit: millis, targets: []report.Target{report.Most("mutex", 0.5)}},
			{name: "p99", unit: millis, targets: []report.Target{report.Most("", 30)}},
		},
		measure: handoffs(waiters),
	}
}

// recallRow is of a delegated directory with n files open below.
func recallRow(n int) row {
	return row{
		name: fmt.Sprintf("recall of a directory, %d files open", n), nodes: 1, systems: []string{"lockfs"}, rounds: 5,
		lines: []line{
			{unit: millis, targets: []report.Target{report.Most("", 50)}},
			{name: "commits"},
		},
		measure: recalls(n),
	}
}

// recallIdleRow is of a file whose lock is kept, beside a handoff of the same mounts.
func recallIdleRow() row {
	return row{
		name: "recall of an idle file", nodes: 1, systems: []string{"keeping"},
		lines: []line{
			{name: "p50", unit: millis},
			{name: "a handoff: p50", unit: millis},
			{name: "the ratio", targets: []report.Target{report.Most("", 2)}},
		},
		measure: recallsOfIdle,
	}
}

// turnsRow is of two mounts that have one file in turn.
func turnsRow() row {
	return row{
		name: "ping-pong of two mounts", nodes: 1, systems: []string{"lockfs", "keeping"},
		lines: []line{
			{name: "a turn", unit: micros},
			{name: "commits of a turn"},
		},
		measure: turns,
	}
}

// keptRow is of n idle locks that mounts keep, as many each as a mount keeps.
func keptRow(n int) row {
	least := []report.Target{report.Most("", 0.1)}
	return row{
		name: fmt.Sprintf("kept, %d idle locks", n), nodes: 1, systems: []string{"keeping"}, rounds: 1,
		lines: []line{
			{name: "client's CPU of a mount", unit: percent, targets: least},
			{name: "etcd's CPU for a mount", unit: percent, targets: least},
			{name: "mounts"},
		},
		measure: keptIdle(n),
	}
}

// leaseRows compare etcd with an API server.
func leaseRows() []row {
	both := []string{"lockfs", kubernetes}
	var rows []row
	for _, callers := range []int{1, 8} {
		of := cycleRow(1, callers)
		rows = append(rows, row{
			name: "Leases, cycle, " + count(callers, "caller"), nodes: 1, systems: both,
			lines:   []line{{unit: of.lines[0].unit}},
			measure: of.measure,
		})
	}
	for _, waiters := range []int{2, 8} {
		rows = append(rows, row{
			name: "Leases, handoff, " + count(waiters, "waiter"), nodes: 1, systems: both, rounds: 5,
			lines:   []line{{name: "p50", unit: millis}, {name: "p99", unit: millis}},
			measure: handoffs(waiters),
		})
	}
	return rows
}

// takeoverTTL is about the shortest TTL that a mount can have.
const takeoverTTL = 3 * time.Second

func takeoverRows() []row {
	within := (takeoverTTL + time.Second).Seconds() / takeoverTTL.Seconds()
	return []row{
		{
			name: fmt.Sprintf("takeover, TTL %v", takeoverTTL), nodes: 3, systems: []string{"mutex", "lockfs"}, rounds: 3,
			lines:   []line{{unit: ttls, targets: []report.Target{report.Most("", within)}}},
			measure: takeover(false),
		},
		{
			name: "takeover, by a successor", nodes: 3, systems: []string{"lockfs"}, rounds: 3,
			lines:   []line{{unit: seconds, targets: []report.Target{report.Most("", 1)}}},
			measure: takeover(true),
		},
	}
}

func heldRow(n int) row {
	var cpu []report.Target
	switch n {
	case 10000:
		cpu = append(cpu, report.Most("", 0.5))
	case 50000:
		cpu = append(cpu, report.Most("", 1))
	}
	lines := []line{
		{name: "client's CPU", unit: percent, targets: cpu},
		{name: "etcd's CPU", unit: percent, targets: cpu},
		{name: "client's memory of a lock", unit: kibibytes},
		{name: "etcd's memory of a lock", unit: kibibytes},
		{name: "a lock before any is held: p50", unit: micros},
		{name: "  p99", unit: micros},
		{name: "one more lock: p50", unit: micros},
		{name: "  p99", unit: micros},
	}
	if n < 1000 {
		lines = lines[:2] // the memory of so few cannot be seen
	}
	systems := []string{"leases", "lockfs"}
	if n > 10000 {
		systems = systems[1:] // etcd does not keep up with so many leases
	}
	return row{
		name: fmt.Sprintf("held, %d locks", n), nodes: 1, systems: systems, rounds: 1,
		lines: lines, measure: held(n),
	}
}
