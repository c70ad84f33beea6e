package renew_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockfs/lockfs/renew"
)

func TestLost(t *testing.T) {
	gone := fmt.Errorf("etcdserver: requested lease not found: %w", renew.ErrGone)
	tests := map[string]struct {
		renewals []call
		lose     func(b *bench) // at 4 s
		want     error
	}{
		"Renew says so": {[]call{answer(time.Second, gone), answer(0, nil)}, func(*bench) {}, renew.ErrGone},
		"Done closed":   {[]call{answer(0, nil)}, func(b *bench) { close(b.lease.done) }, renew.ErrGone},
		"closed":        {[]call{answer(0, nil)}, func(b *bench) { b.Close() }, renew.ErrClosed},
		// The answer that would extend the lease arrives after the loss.
		"renewal under way": {[]call{deaf(2*time.Second, nil)}, func(b *bench) { close(b.lease.done) }, renew.ErrGone},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			run(t, func(b *bench) {
				b.stateAt(interval, renew.Held)
				if err := b.Cause(); err != nil {
					t.Errorf("Cause() = %v while Held", err)
				}
				b.at(4 * time.Second)
				test.lose(b)
				for d := 4 * time.Second; d < time.Minute; d += time.Second {
					b.stateAt(d, renew.Lost)
				}
				select {
				case <-b.Lost():
				default:
					t.Error("Lost() is not closed")
				}
				for _, err := range []error{b.Cause(), b.Await(b.t.Context())} {
					if !errors.Is(err, test.want) {
						t.Errorf("got error %v, want %v", err, test.want)
					}
				}
				if renewals, _ := b.lease.counts(); renewals != 1 {
					t.Errorf("%d renewals, want none after the loss", renewals)
				}
			}, test.renewals...)
		})
	}
}

func TestFirstCauseStays(t *testing.T) {
	run(t, func(b *bench) {
		b.at(interval)
		close(b.lease.done)
		b.Close()
		b.Close()
		if err := b.Cause(); !errors.Is(err, renew.ErrGone) || errors.Is(err, renew.ErrClosed) {
			t.Errorf("Cause() = %v, want ErrGone alone", err)
		}
	}, answer(0, renew.ErrGone))
}

func TestCloseCancelsARenewalAndWaitsForIt(t *testing.T) {
	var returned time.Time
	slow := func(ctx context.Context) error {
		<-ctx.Done()
		<-time.After(300 * time.Millisecond) // it takes a while to let go
		returned = time.Now()
		return ctx.Err()
	}
	run(t, func(b *bench) {
		b.at(interval + time.Second)
		b.Close()
		if want := b.start.Add(interval + 1300*time.Millisecond); !returned.Equal(want) || !time.Now().Equal(want) {
			t.Errorf("Renew returned at %v, Close at %v, want %v", returned.Sub(b.start), time.Since(b.start), want.Sub(b.start))
		}
	}, slow)
}
