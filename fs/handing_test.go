package fs

import (
	"context"
	"errors"
	"os"
	"testing"
)

// A server whose pause was given up may still have requests: the next pause waits for them.
func TestGivenUpPauseLeavesAServer(t *testing.T) {
	c := connection{ended: make(chan struct{})}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for range 2 {
		device, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer device.Close()
		c.serving.Store(&serving{number: int(device.Fd()), done: make(chan struct{})})
		if err := c.divert(); err != nil {
			t.Fatal(err)
		}
		if err := c.drain(over); !errors.Is(err, ErrBusy) {
			t.Fatalf("a pause without time: %v", err)
		}
	}
	if len(c.former) != 2 {
		t.Errorf("the next pause waits for %d servers", len(c.former))
	}
}
