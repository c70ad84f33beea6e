package lockmgrtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// Options says what a backend claims, and what the suite can do to it beside the interfaces of
// lockmgr.
type Options struct {
	// Ordered claims that waits are granted in order of arrival, and that Entries lists
	// requests that queue. The zero value claims neither.
	Ordered bool

	// OneByOne claims that a request that queues for several keys stands in one line
	// after the other, and not in all at once.
	OneByOne bool

	// Expire ends a session as the service does when it has not heard of it
	// for its TTL. The zero value closes the session instead.
	Expire func(t *testing.T, b lockmgr.Backend, s lockmgr.Session)

	// Remove deletes the entry of an acquisition behind its holder's back. The
	// zero value skips the tests that need it.
	Remove func(t *testing.T, b lockmgr.Backend, k lockmgr.Key, mode lockmgr.Mode, id lockmgr.AcquisitionID)
}

// Conformance runs the tests that every lockmgr.Backend passes. newBackend
// returns the backend of a volume without locks; it is called once a test. The tests run side by
// side.
func Conformance(t *testing.T, newBackend func(t *testing.T) lockmgr.Backend, opts Options) {
	for _, test := range []struct {
		name string
		run  func(*bench)
	}{
		{"NoWait", testNoWait},
		{"Retry", testRetry},
		{"Queue", testQueue},
		{"Waits", testWaits},
		{"Order", testOrder},
		{"SeveralKeys", testSeveralKeys},
		{"QueueSeveralKeys", testQueueSeveralKeys},
		{"InTurn", testInTurn},
		{"InvalidRequests", testInvalidRequests},
		{"Conflicts", testConflicts},
		{"TreeAmongFiles", testTreeAmongFiles},
		{"FilesUnderTree", testFilesUnderTree},
		{"Inodes", testInodes},
		{"Shared", testShared},
		{"SharedOrder", testSharedOrder},
		{"Upgrade", testUpgrade},
		{"UpgradeDeadlock", testUpgradeDeadlock},
		{"Tokens", testTokens},
		{"Undisturbed", testUndisturbed},
		{"Release", testRelease},
		{"Held", testHeld},
		{"Watch", testWatch},
		{"Entries", testEntries},
		{"PathBytes", testPathBytes},
		{"AbandonedWaits", testAbandonedWaits},
		{"RemovedEntry", testRemovedEntry},
		{"SessionEnd", testSessionEnd},
		{"SessionEndOrder", testSessionEndOrder},
		{"Close", testClose},
		{"Breaks", testBreaks},
		{"Revoke", testRevoke},
		{"Recall", testRecall},
		{"RecallInUse", testRecallInUse},
		{"NoRecall", testNoRecall},
		{"Describe", testDescribe},
		{"AdvisoryPut", testAdvisoryPut},
		{"AdvisoryEnd", testAdvisoryEnd},
		{"AdvisoryVoid", testAdvisoryVoid},
		{"Delegate", testDelegate},
		{"DelegateRefused", testDelegateRefused},
		{"PutBelow", testPutBelow},
		{"Stands", testStands},
		{"DelegateOwn", testDelegateOwn},
		{"DelegateRecalled", testDelegateRecalled},
		{"DelegateExclusion", testDelegateExclusion},
		{"Exclusion", testExclusion},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := &bench{T: t, b: newBackend(t), opts: opts}
			defer b.explain()
			test.run(b)
		})
	}
}

// bench is what a test of the suite works with.
type bench struct {
	*testing.T
	b    lockmgr.Backend
	opts Options
}

func (t *bench) open() lockmgr.Session {
	t.Helper()
	return Open(t.T, t.b, TTL)
}

func (t *bench) within(d time.Duration) context.Context { return Within(t.T, d) }

func (t *bench) must(s lockmgr.Session, wait lockmgr.Wait, keys ...lockmgr.Key) []lockmgr.Grant {
	t.Helper()
	return Must(t.T, s, wait, keys...)
}

func (t *bench) mustHave(s lockmgr.Session, req lockmgr.AcquireRequest) []lockmgr.Grant {
	t.Helper()
	return Acquire(t.T, s, req)
}

// timeOut has a request wait until its time is over. It tries again with twice the time until
// that was enough for an answer.
func (t *bench) timeOut(s lockmgr.Session, wait lockmgr.Wait, keys ...lockmgr.Key) error {
	t.Helper()
	for d := Patience / 1000; ; d *= 2 {
		_, err := s.Acquire(t.within(d), Request(wait, keys...))
		if errors.Is(err, lockmgr.ErrContended) || d > Patience {
			return err
		}
	}
}

func (t *bench) release(s lockmgr.Session, grants ...lockmgr.Grant) {
	t.Helper()
	Release(t.T, s, grants...)
}

func (t *bench) await(ch <-chan Answer) Answer {
	t.Helper()
	return Await(t.T, ch)
}

func (t *bench) eventually(what string, cond func() bool) {
	t.Helper()
	Eventually(t.T, what, cond)
}

func (t *bench) entries(prefix string) []lockmgr.Entry {
	t.Helper()
	list, err := t.b.Entries(t.within(Patience), prefix)
	if err != nil {
		t.Fatalf("Entries(%q): %v", prefix, err)
	}
	return list
}

// rivals compares what Rivals has for k with the list of all.
func (t *bench) rivals(k lockmgr.Key) {
	t.Helper()
	want := lockmgr.Rivals(t.entries(""), k)
	t.eventually("what conflicts with "+k.String()+" is known", func() bool {
		got, err := t.b.Rivals(t.within(Patience), k)
		return err == nil && slices.Equal(got, want)
	})
}

// explain lists the entries that a failed test has left.
func (t *bench) explain() {
	if t.Failed() {
		list, err := t.b.Entries(t.within(Patience), "")
		t.Logf("entries: %v, %v", list, err)
	}
}

// listed waits until exactly these acquisitions have an entry.
func (t *bench) listed(want ...lockmgr.AcquisitionID) {
	t.Helper()
	t.eventually("the entries are as expected", func() bool {
		list := t.entries("")
		return len(list) == len(want) && !slices.ContainsFunc(list, func(e lockmgr.Entry) bool {
			return !slices.Contains(want, e.Holder.AcquisitionID)
		})
	})
}

// expire ends s as the service would.
func (t *bench) expire(s lockmgr.Session) {
	t.Helper()
	if t.opts.Expire != nil {
		t.opts.Expire(t.T, t.b, s)
		return
	}
	if err := s.Close(t.within(Patience)); err != nil {
		t.Fatalf("Close: %v", err)
	}
}

func inode(dir string, ino uint64) lockmgr.Key { return mustKey(lockmgr.InodeKey(dir, ino)) }
