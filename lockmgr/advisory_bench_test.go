package lockmgr_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/advisory"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// BenchmarkAdvisoryCrowd grants one lock, and makes one request, while so many of a mount wait.
func BenchmarkAdvisoryCrowd(b *testing.B) {
	whole := func(kind advisory.Kind, exclusive bool) func(uint64) advisory.Lock {
		return func(uint64) advisory.Lock {
			return advisory.Lock{Owner: advisory.Owner{Kind: kind}, End: advisory.EOF, Exclusive: exclusive}
		}
	}
	byte := func(i uint64) advisory.Lock { return advisory.Lock{Start: i, End: i, Exclusive: true} }
	for _, c := range []struct {
		name string
		keep time.Duration
		want func(i uint64) advisory.Lock // what the i-th owner wants
	}{
		{"flock", 0, whole(advisory.Flock, true)},
		{"flock,private", time.Hour, whole(advisory.Flock, true)},
		{"fcntl", 0, whole(advisory.Posix, true)},
		{"fcntl,private", time.Hour, whole(advisory.Posix, true)},
		{"readers", 0, whole(advisory.Flock, false)},
		{"readers,private", time.Hour, whole(advisory.Flock, false)},
		{"apart", 0, byte},
		{"apart,private", time.Hour, byte},
	} {
		for _, n := range []int{1000, 10000} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) { benchmarkCrowd(b, n, c.keep, c.want) })
		}
	}
}

func newBenchAdvisory(ctx context.Context, b *testing.B) (*lockmgr.Manager, *lockmgr.Advisory) {
	m, err := lockmgr.New(ctx, lockmgr.Config{
		Backend: lockmgrtest.NewMemory(), Session: lockmgr.SessionInfo{Node: "node"}, Logger: slog.New(slog.DiscardHandler),
		Renew: renew.Config{TTL: time.Minute},
	})
	if err != nil {
		b.Fatal(err)
	}
	a, err := m.NewAdvisory(lockmgr.AdvisoryConfig{OnLost: func(*lockmgr.AdvisoryTable) {}})
	if err != nil {
		b.Fatal(err)
	}
	return m, a
}

func benchmarkCrowd(b *testing.B, n int, keep time.Duration, want func(uint64) advisory.Lock) {
	ctx, cancel := context.WithCancel(b.Context())
	m, a := newBenchAdvisory(ctx, b)
	t := a.Open(table, &keep)
	lock := func(i uint64) advisory.Lock {
		l := want(i)
		l.Owner, l.Since = a.Owner(l.Owner.Kind, i+1), time.Now()
		return l
	}
	granted := make(chan uint64, n)
	ask := func(i uint64) {
		go func() {
			if _, err := t.Lock(ctx, lock(i), true); err == nil {
				granted <- i
			}
		}()
	}
	first := lock(uint64(n))
	first.Start, first.End, first.Exclusive = 0, advisory.EOF, true
	if _, err := t.Lock(ctx, first, false); err != nil {
		b.Fatal(err)
	}
	for i := range uint64(n) {
		ask(i)
	}
	for m.Stats().AdvisoryWaiting < n {
		time.Sleep(time.Millisecond)
	}
	l := lock(0)
	b.ResetTimer()
	before := cpu(b)
	switch {
	case l.End < advisory.EOF: // each byte is given up, and had by the one that waits for it
		for i := range b.N {
			at := uint64(i % n)
			t.Unlock(nil, first.Owner, at, at)
			t.Unlock(nil, lock(<-granted).Owner, at, at)
			again := first
			again.Start, again.End = at, at
			if _, err := t.Lock(ctx, again, true); err != nil {
				b.Fatal(err)
			}
			ask(at)
		}
	case l.Exclusive:
		t.Unlock(nil, first.Owner, 0, advisory.EOF)
		for range b.N {
			i := <-granted
			t.Unlock(nil, lock(i).Owner, 0, advisory.EOF)
			ask(i)
		}
	default: // the writer's turns are those of one reader that has left
		for range b.N {
			l := lock(uint64(n + 1))
			if _, err := t.Lock(ctx, l, false); err == nil {
				b.Fatal("read beside the writer")
			}
		}
	}
	b.StopTimer()
	b.ReportMetric(float64(cpu(b)-before)/float64(b.N), "cpu-ns/op")
	cancel()
	if err := m.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkAdvisoryRanges locks and unlocks a byte beside so many other ranges of the mount: of the same
// owner, or of an owner each.
func BenchmarkAdvisoryRanges(b *testing.B) {
	for _, n := range []uint64{0, 1000, 4000} {
		b.Run(fmt.Sprintf("own/%d", n), func(b *testing.B) { benchmarkRanges(b, n, func(uint64) uint64 { return 0 }) })
		b.Run(fmt.Sprintf("others/%d", n), func(b *testing.B) { benchmarkRanges(b, n, func(i uint64) uint64 { return i + 1 }) })
	}
}

func benchmarkRanges(b *testing.B, n uint64, owner func(i uint64) uint64) {
	m, a := newBenchAdvisory(b.Context(), b)
	keep := time.Hour
	t := a.Open(table, &keep)
	lock := func(owner, at uint64) {
		l := advisory.Lock{Owner: a.Owner(advisory.Posix, owner), Start: at, End: at, Exclusive: true}
		if _, err := t.Lock(b.Context(), l, false); err != nil {
			b.Fatal(err)
		}
	}
	for i := range n {
		lock(owner(i), 2*i+10)
	}
	for b.Loop() {
		lock(0, 1)
		t.Unlock(nil, a.Owner(advisory.Posix, 0), 1, 1)
	}
	if err := m.Close(context.Background()); err != nil {
		b.Fatal(err)
	}
}

// cpu is the time that the processors have worked for this process.
func cpu(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
