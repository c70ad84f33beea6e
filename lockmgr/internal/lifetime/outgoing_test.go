package lifetime

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Freeze returns when what was under way has ended, and nothing begins until thaw.
func TestFreeze(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outgoing
		if err := o.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		frozen := make(chan func())
		go func() {
			thaw, err := o.Freeze(t.Context())
			if err != nil {
				t.Error(err)
			}
			frozen <- thaw
		}()
		synctest.Wait()
		select {
		case <-frozen:
			t.Fatal("frozen with a request under way")
		default:
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := o.Enter(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Enter while frozen: %v", err)
		}
		entered := make(chan error, 1)
		go func() { entered <- o.Enter(t.Context()) }()
		o.Leave()
		thaw := <-frozen
		synctest.Wait()
		select {
		case <-entered:
			t.Fatal("a request begins while frozen")
		default:
		}
		thaw()
		if err := <-entered; err != nil {
			t.Fatal(err)
		}
	})
}

// If what is under way does not end, requests go on.
func TestFreezeGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var o Outgoing
		if err := o.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := o.Freeze(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Freeze: %v", err)
		}
		if err := o.Enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		o.Leave()
		o.Leave() // nobody waits for it
	})
}
