package fs

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A flush that the volume does not answer neither delays a refusal nor ends the work for good.
func TestHousekeepingEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangs := make(chan struct{})
		begun := 0
		k := newHousekeeping(func(ctx context.Context) {
			begun++
			<-ctx.Done()
			<-hangs
		})
		k.begin()
		for range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			since := time.Now()
			if err := k.end(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(since) != time.Second {
				t.Errorf("%v, after %v", err, time.Since(since))
			}
			cancel()
		}
		close(hangs)
		synctest.Wait()
		if begun != 2 {
			t.Errorf("begun %d times", begun)
		}
		if err := k.end(t.Context()); err != nil {
			t.Errorf("when the volume answers: %v", err)
		}
		k.beginNothing()
		if err := k.end(t.Context()); err != nil {
			t.Errorf("of nothing: %v", err)
		}
	})
}
