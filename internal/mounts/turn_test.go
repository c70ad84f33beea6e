package mounts

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestTurn(t *testing.T) {
	dir := t.TempDir()
	end, err := Turn(t.Context(), dir, "/mnt/a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := Turn(t.Context(), dir, "/mnt/b")
	if err != nil {
		t.Fatal("the turn at another mountpoint:", err)
	}
	other()
	short, cancel := context.WithTimeout(t.Context(), 3*turnPoll)
	defer cancel()
	if _, err := Turn(short, dir, "/mnt/a"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a second turn at one mountpoint: %v", err)
	}
	next := make(chan error)
	go func() {
		end, err := Turn(t.Context(), dir, "/mnt/a")
		if err == nil {
			end()
		}
		next <- err
	}()
	select {
	case err := <-next:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(3 * turnPoll):
	}
	end()
	if err := <-next; err != nil {
		t.Error(err)
	}
}
