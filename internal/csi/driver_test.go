package csi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Many requests at once take turns. A volume that hangs has no more than some of them hang with it.
func TestOperationsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := New(Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		errs := make(chan error)
		all := func(op func() error) {
			for i := range 5 * maxWorking {
				go func() { errs <- d.do(ctx, fmt.Sprint(i), "a/v", op) }()
			}
		}
		all(func() error { time.Sleep(time.Second); return nil })
		for range 5 * maxWorking {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		hang := make(chan struct{})
		all(func() error { <-hang; return nil })
		synctest.Wait()
		for i := range 5 * maxWorking { // under way, or waiting
			if err := d.do(ctx, fmt.Sprint(i), "a/v", func() error { return nil }); status.Code(err) != codes.Aborted {
				t.Errorf("a second operation: %v", err)
			}
		}
		got := make(map[codes.Code]int)
		for range 5 * maxWorking {
			got[status.Code(<-errs)]++
		}
		if got[codes.DeadlineExceeded] != maxWorking || got[codes.Unavailable] != 4*maxWorking {
			t.Errorf("a volume hangs: %v", got)
		}
		if err := d.do(t.Context(), "other", "a/other", func() error { return errors.ErrUnsupported }); err != errors.ErrUnsupported {
			t.Errorf("another volume: %v", err)
		}
		close(hang)
	})
}

// A driver whose pod was deleted by force ends after the next one has begun.
func TestDriverThatEndsLate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	former, err := listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	next, err := listen("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	if err := former.Close(); err != nil {
		t.Error(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatalf("the next driver cannot be reached: %v", err)
	}
	conn.Close()
}
