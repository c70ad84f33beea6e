package lifetime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// What has entered ends with the session, and is waited for; nothing enters afterwards.
func TestEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Begin(t.Context(), "s", slog.New(slog.DiscardHandler))
		ctx, leave, err := l.Enter(t.Context())
		if err != nil || ctx.Err() != nil {
			t.Fatalf("Enter: %v, %v", err, ctx.Err())
		}
		waited := make(chan struct{})
		go func() {
			if err := l.Close(t.Context(), func(context.Context) error { return nil }); err != nil {
				t.Errorf("Close: %v", err)
			}
			close(waited)
		}()
		synctest.Wait()
		if ctx.Err() == nil {
			t.Error("what has entered goes on after the end")
		}
		select {
		case <-waited:
			t.Error("it is not waited for")
		default:
		}
		leave()
		<-waited
		if _, _, err := l.Enter(t.Context()); !errors.Is(err, lockmgr.ErrSessionLost) {
			t.Errorf("Enter after the end: %v", err)
		}
	})
}

func TestOutcome(t *testing.T) {
	unavailable, held := fmt.Errorf("%w: no answer", lockmgr.ErrUnavailable), &lockmgr.ContendedError{}
	contended := func(error) error { return held }
	nobody := func(error) error { return nil }
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, test := range map[string]struct {
		ctx       context.Context
		ends      bool
		err       error
		contended func(error) error
		want      error
	}{
		"the session went":        {over, true, unavailable, contended, lockmgr.ErrSessionLost},
		"no answer":               {t.Context(), false, unavailable, contended, unavailable},
		"refused":                 {over, false, lockmgr.ErrDeadlock, contended, lockmgr.ErrDeadlock},
		"a holder was waited for": {over, false, unavailable, contended, held},
		"nobody answered":         {over, false, unavailable, nobody, unavailable},
	} {
		l := Begin(t.Context(), "s", slog.New(slog.DiscardHandler))
		if test.ends {
			l.End()
		}
		if err := l.Outcome(test.ctx, test.err, test.contended); err != test.want {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
		l.End()
	}
}

func TestNoted(t *testing.T) {
	l := Begin(t.Context(), "s", slog.New(slog.DiscardHandler))
	if err := l.Noted(lockmgr.ErrUnavailable); err != lockmgr.ErrUnavailable || l.Ended() {
		t.Errorf("Noted: %v, over: %v", err, l.Ended())
	}
	if err := l.Noted(lockmgr.SessionLost(errors.New("no lease"))); !errors.Is(err, lockmgr.ErrSessionLost) || !l.Ended() {
		t.Errorf("Noted: %v, over: %v", err, l.Ended())
	}
}

// begin begins a life, whose log is returned.
func begin(t *testing.T) (*Life, *bytes.Buffer) {
	var log bytes.Buffer
	return Begin(t.Context(), "s", slog.New(slog.NewTextHandler(&log, nil))), &log
}

// A session that the service has ended is news once, and not after our own Close.
func TestLost(t *testing.T) {
	l, log := begin(t)
	l.Lost()
	l.Lost()
	if !l.Ended() || strings.Count(log.String(), "session ended") != 1 {
		t.Errorf("over: %v; log:\n%s", l.Ended(), log)
	}
	l, log = begin(t)
	l.End()
	l.Lost()
	if log.Len() > 0 {
		t.Errorf("log:\n%s", log)
	}
}

// The service is told of the end until it has heard, or nobody waits for that.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := begin(t)
		tries := 0
		err := l.Close(t.Context(), func(context.Context) error {
			if tries++; tries < 3 {
				return lockmgr.ErrUnavailable
			}
			return nil
		})
		if err != nil || tries != 3 || !l.Ended() {
			t.Errorf("Close: %v after %d tries, over: %v", err, tries, l.Ended())
		}
		l, _ = begin(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = l.Close(ctx, func(context.Context) error { return lockmgr.ErrUnavailable })
		if !errors.Is(err, lockmgr.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !l.Ended() {
			t.Errorf("Close: %v, over: %v", err, l.Ended())
		}
	})
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := begin(t)
		runs, failures := 0, 0
		l.Go(func() {
			l.Every(time.Minute, func(context.Context) error {
				if runs++; runs%2 == 0 {
					return lockmgr.ErrUnavailable
				}
				return nil
			}, func(error) { failures++ })
		})
		time.Sleep(time.Hour)
		l.End()
		synctest.Wait()
		if runs < 30 || runs > 120 || failures != runs/2 {
			t.Errorf("%d runs and %d failures in an hour", runs, failures)
		}
	})
}

// What a failed acquisition has left is removed while the session lives. That it is not is
// worth a line, unless it goes with the session.
func TestDiscard(t *testing.T) {
	for name, test := range map[string]struct {
		withdraw func(*Life) error
		logged   bool
	}{
		"removed":       {func(*Life) error { return nil }, false},
		"refused":       {func(*Life) error { return lockmgr.ErrUnavailable }, true},
		"session ended": {func(l *Life) error { l.End(); return lockmgr.ErrUnavailable }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, log := begin(t)
			done := make(chan struct{})
			l.Discard(lockmgr.AcquisitionID{}, func(context.Context) error { return test.withdraw(l) }, func() { close(done) })
			<-done
			if logged := strings.Contains(log.String(), "remain for now"); logged != test.logged {
				t.Errorf("log:\n%s", log)
			}
		})
	}
}
