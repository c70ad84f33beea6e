package main

import "github.com/lockfs/lockfs/bench/internal/report"

// The units of figures.
const (
	megabytes = "MB/s"
	perSecond = "op/s"
	seconds   = "s"
)

type row struct {
	name    string
	unit    string
	needs   string // a program; "" if none
	work    func(*work) error
	targets []report.Target
}

// noise is the difference that is seen between two equal systems. 'Not below' allows it.
const noise = 0.05

// rows is the table. Each row has one more target: not below loopback.
var rows = []row{
	{name: "seq read 128k", unit: megabytes, work: seqRead(128 << 10)},
	{name: "seq read 1m", unit: megabytes, work: seqRead(1 << 20)},
	{name: "seq write 128k", unit: megabytes, work: seqWrite(128 << 10)},
	{name: "seq write 1m", unit: megabytes, work: seqWrite(1 << 20), targets: []report.Target{report.Least("loopback", 3)}},
	{name: "rand read 4k", unit: perSecond, work: randRead(1)},
	{name: "rand read 4k x4", unit: perSecond, work: randRead(4)},
	{name: "rand write 4k", unit: perSecond, work: randWrite(1, writeOnly), targets: []report.Target{report.Least("loopback", 1.8)}},
	{name: "rand write 4k x4", unit: perSecond, work: randWrite(4, writeOnly), targets: []report.Target{report.Least("loopback", 1.8)}},
	{name: "rand write 4k rdwr", unit: perSecond, work: randWrite(1, readWrite)},
	{name: "append 100b", unit: perSecond, work: appends},
	{name: "write 4k+fdatasync", unit: perSecond, work: syncedWrites},
	{name: "create+4k+close", unit: perSecond, work: createWriteClose, targets: []report.Target{report.Least("loopback", 1.4)}},
	{name: "open+4k+close", unit: perSecond, work: openWriteClose, targets: []report.Target{report.Least("loopback", 1.4)}},
	{name: "create+unlink", unit: perSecond, work: createUnlink},
	{name: "open+close", unit: perSecond, work: openClose},
	{name: "stat", unit: perSecond, work: stats, targets: []report.Target{report.Least("ext4", 0.85)}},
	{name: "hot read 4k", unit: megabytes, work: hotRead(page), targets: []report.Target{report.Least("ext4", 0.85)}},
	{name: "hot read 128k", unit: megabytes, work: hotRead(128 << 10), targets: []report.Target{report.Least("ext4", 0.85)}},
	{name: "open+hot 1m+close", unit: megabytes, work: openHotRead},
	{name: "tar x", unit: seconds, needs: "tar", work: untar, targets: []report.Target{report.Most("ext4", 1.6)}},
	{name: "cp -r", unit: seconds, needs: "cp", work: copyTree},
	{name: "find+stat", unit: seconds, needs: "find", work: find, targets: []report.Target{report.Most("ext4", 3)}},
	{name: "npm-like", unit: seconds, work: install},
	{name: "git clone", unit: seconds, needs: "git", work: gitClone},
	{name: "rm -rf", unit: seconds, needs: "rm", work: removeTree},
}

// allTargets adds the target of every row.
func (r row) allTargets() []report.Target {
	notBelow := report.Least("loopback", 1-noise)
	if r.unit == seconds {
		notBelow = report.Most("loopback", 1+noise)
	}
	return append([]report.Target{notBelow}, r.targets...)
}
