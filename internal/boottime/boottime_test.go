package boottime

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestSystemFollowsTheKernel(t *testing.T) {
	read := func() Instant {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			t.Fatal(err)
		}
		return Instant(ts.Nano())
	}
	before := read()
	now := System{}.Now()
	after := read()
	if now < before || now > after {
		t.Errorf("Now() = %d, want one between %d and %d", now, before, after)
	}
}

// A process that is stopped while it reads the clock does not go on with an old time.
func TestTimeIsNotOld(t *testing.T) {
	var last Instant
	got := promptly(func() Instant {
		if last++; last < 3 {
			time.Sleep(2 * quick)
		}
		return last // without CPU also of a later reading than the third
	})
	if got < 3 || got != last {
		t.Errorf("got the time of reading %d of %d, want the last, and no earlier one than 3", got, last)
	}
}

func TestSystemDoesNotAllocate(t *testing.T) {
	var clock Clock = System{}
	if n := testing.AllocsPerRun(100, func() { clock.Now() }); n != 0 {
		t.Errorf("Now() allocates %v times", n)
	}
}

func TestInstantArithmetic(t *testing.T) {
	start := Instant(5)
	end := start.Add(3 * time.Second)
	if got := end.Sub(start); got != 3*time.Second {
		t.Errorf("Sub = %v, want 3s", got)
	}
}

func TestBootID(t *testing.T) {
	first, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	second, _ := BootID()
	if len(first) != 36 || first != second {
		t.Errorf("BootID() = %q, then %q", first, second)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		System{}.Now()
	}
}

// BenchmarkTimeNow, the vDSO's price, is what BenchmarkNow is compared with.
func BenchmarkTimeNow(b *testing.B) {
	for b.Loop() {
		time.Now()
	}
}
