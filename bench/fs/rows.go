package main

import "math"

// The units of figures.
const (
	megabytes = "MB/s"
	perSecond = "op/s"
	seconds   = "s"
)

// row is one line of the table.
type row struct {
	name    string
	unit    string
	needs   string // a program; "" if none
	work    func(*work) error
	targets []target
}

// target is what the ratio of lockfs over another system has to be.
type target struct {
	over            string
	atLeast, atMost float64 // of which one is 0
}

func least(over string, ratio float64) target { return target{over: over, atLeast: ratio} }
func most(over string, ratio float64) target  { return target{over: over, atMost: ratio} }

// noise is by how much two equal systems are seen to differ: 'not below' means
// not by more.
const noise = 0.05

// rows is the table. To the targets shown comes one for each row: not below
// loopback.
var rows = []row{
	{name: "seq read 128k", unit: megabytes, work: seqRead(128 << 10)},
	{name: "seq read 1m", unit: megabytes, work: seqRead(1 << 20)},
	{name: "seq write 128k", unit: megabytes, work: seqWrite(128 << 10)},
	{name: "seq write 1m", unit: megabytes, work: seqWrite(1 << 20), targets: []target{least("loopback", 3)}},
	{name: "rand read 4k", unit: perSecond, work: randRead(1)},
	{name: "rand read 4k x4", unit: perSecond, work: randRead(4)},
	{name: "rand write 4k", unit: perSecond, work: randWrite(1, writeOnly), targets: []target{least("loopback", 1.8)}},
	{name: "rand write 4k x4", unit: perSecond, work: randWrite(4, writeOnly), targets: []target{least("loopback", 1.8)}},
	{name: "rand write 4k rdwr", unit: perSecond, work: randWrite(1, readWrite)},
	{name: "append 100b", unit: perSecond, work: appends},
	{name: "write 4k+fdatasync", unit: perSecond, work: syncedWrites},
	{name: "create+4k+close", unit: perSecond, work: createWriteClose, targets: []target{least("loopback", 1.4)}},
	{name: "open+4k+close", unit: perSecond, work: openWriteClose, targets: []target{least("loopback", 1.4)}},
	{name: "create+unlink", unit: perSecond, work: createUnlink},
	{name: "open+close", unit: perSecond, work: openClose},
	{name: "stat", unit: perSecond, work: stats, targets: []target{least("ext4", 0.85)}},
	{name: "hot read 4k", unit: megabytes, work: hotRead(page), targets: []target{least("ext4", 0.85)}},
	{name: "hot read 128k", unit: megabytes, work: hotRead(128 << 10), targets: []target{least("ext4", 0.85)}},
	{name: "open+hot 1m+close", unit: megabytes, work: openHotRead},
	{name: "tar x", unit: seconds, needs: "tar", work: untar, targets: []target{most("ext4", 1.6)}},
	{name: "cp -r", unit: seconds, needs: "cp", work: copyTree},
	{name: "find+stat", unit: seconds, needs: "find", work: find, targets: []target{most("ext4", 3)}},
	{name: "git clone", unit: seconds, needs: "git", work: gitClone},
	{name: "rm -rf", unit: seconds, needs: "rm", work: removeTree},
}

// allTargets adds what holds for every row.
func (r row) allTargets() []target {
	notBelow := least("loopback", 1-noise)
	if r.unit == seconds {
		notBelow = most("loopback", 1+noise)
	}
	return append([]target{notBelow}, r.targets...)
}

// met says whether a ratio is as the target wants it.
func (t target) met(ratio float64) bool {
	if t.atMost != 0 {
		return ratio <= t.atMost
	}
	return ratio >= t.atLeast && !math.IsNaN(ratio)
}
