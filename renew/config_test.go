package renew_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockfs/lockfs/renew"
)

func TestTimings(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		name   string
		cfg    renew.Config
		refuse string // part of the message; empty: accepted
	}{
		{"default TTL", renew.Config{TTL: 15 * s}, ""},
		{"smallest TTL", renew.Config{TTL: renew.MinTTL}, ""},
		{"an hour", renew.Config{TTL: 3600 * s}, ""},
		{"network volume", renew.Config{TTL: 60 * s, Margin: 30 * s}, ""},
		{"give up at once", renew.Config{TTL: 15 * s, SuspendWait: 1}, ""},
		{"smallest margin", renew.Config{TTL: 15 * s, Margin: 965 * ms}, ""},

		{"no TTL", renew.Config{}, "TTL 0s: want whole seconds"},
		{"negative TTL", renew.Config{TTL: -15 * s}, "TTL -15s"},
		{"part of a second", renew.Config{TTL: 15*s + 500*ms}, "TTL 15.5s: want whole seconds"},
		{"TTL too short", renew.Config{TTL: renew.MinTTL - s},
			"Margin 666.666666ms < write in flight 750ms + check to issue 200ms + TTL/1000 2ms = 952ms"},
		{"margin too short", renew.Config{TTL: 15 * s, Margin: 965*ms - 1}, "= 965ms: a write could land"},
		{"negative margin", renew.Config{TTL: 15 * s, Margin: -s}, "Margin -1s <"},
		{"margin leaves no room", renew.Config{TTL: 15 * s, Margin: 9 * s},
			"Interval 3s + 2 × Attempt 1.875s = 6.75s > TTL 15s − Margin 9s = 6s"},
		{"interval too long", renew.Config{TTL: 15 * s, Interval: 7 * s}, "Interval 7s + 2 × Attempt 1.875s = 10.75s > "},
		{"attempt too long", renew.Config{TTL: 15 * s, Attempt: 3501 * ms, Interval: 3501 * ms}, "one failed renewal would suspend"},
		{"attempt too short", renew.Config{TTL: 15 * s, Attempt: 99 * ms}, "Attempt 99ms < 100ms"},
		{"negative attempt", renew.Config{TTL: 15 * s, Attempt: -s}, "Attempt -1s < 100ms"},
		{"interval below attempt", renew.Config{TTL: 15 * s, Interval: s}, "Interval 1s < Attempt 1.875s"},
		{"negative wait", renew.Config{TTL: 15 * s, SuspendWait: -s}, "SuspendWait -1s < 0"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.cfg.Validate()
			if test.refuse == "" {
				if err != nil {
					t.Errorf("Validate() = %v", err)
				}
				return
			}
			if !errors.Is(err, renew.ErrTimings) || !strings.Contains(err.Error(), test.refuse) {
				t.Errorf("Validate() = %v, want ErrTimings with %q", err, test.refuse)
			}
			if _, startErr := renew.Start(test.cfg, newScript(newClock()), 0); !errors.Is(startErr, renew.ErrTimings) {
				t.Errorf("Start() = %v, want ErrTimings", startErr)
			}
		})
	}
}

func TestStartRefusesAGrantFromTheFuture(t *testing.T) {
	clock := newClock()
	cfg := renew.Config{TTL: ttl, Clock: clock, Logger: discard}
	if _, err := renew.Start(cfg, newScript(clock), clock.Now().Add(time.Hour)); !errors.Is(err, renew.ErrTimings) {
		t.Errorf("Start() = %v, want ErrTimings", err)
	}
	if _, err := renew.Start(cfg, nil, clock.Now()); err == nil {
		t.Error("Start() without a lease succeeded")
	}
}
