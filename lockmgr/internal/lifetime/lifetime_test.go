package lifetime

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/lockfs/lockfs/lockmgr"
)

// What has entered ends with the session, and is waited for; nothing enters afterwards.
func TestEnter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Begin(t.Context())
		ctx, leave, err := l.Enter(t.Context())
		if err != nil || ctx.Err() != nil {
			t.Fatalf("Enter: %v, %v", err, ctx.Err())
		}
		waited := make(chan struct{})
		go func() {
			l.End()
			l.Wait()
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
		l := Begin(t.Context())
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
	l := Begin(t.Context())
	if err := l.Noted(lockmgr.ErrUnavailable); err != lockmgr.ErrUnavailable || l.Ended() {
		t.Errorf("Noted: %v, over: %v", err, l.Ended())
	}
	if err := l.Noted(lockmgr.SessionLost(errors.New("no lease"))); !errors.Is(err, lockmgr.ErrSessionLost) || !l.Ended() {
		t.Errorf("Noted: %v, over: %v", err, l.Ended())
	}
}
