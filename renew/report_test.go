package renew_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockfs/lockfs/renew"
)

// bubbleStart is when every synctest bubble begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// changes records what OnChange is told, with the time since the test began.
type changes struct {
	mu   sync.Mutex
	told []string
}

func (c *changes) add(state renew.State, cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told = append(c.told, fmt.Sprintf("%v %v trouble=%v unanswered=%v", time.Since(bubbleStart), state,
		errors.Is(cause, errTrouble), errors.Is(cause, renew.ErrUnanswered)))
}

func (c *changes) check(t *testing.T, want ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Equal(c.told, want) {
		t.Errorf("OnChange was told\n\t%s\nwant\n\t%s", strings.Join(c.told, "\n\t"), strings.Join(want, "\n\t"))
	}
}

func TestChangesAreReportedInOrder(t *testing.T) {
	var c changes
	var log bytes.Buffer
	cfg := renew.Config{TTL: ttl, OnChange: c.add, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	runConfig(t, cfg, func(b *bench) {
		b.at(18 * time.Second)
		b.lease.become(answer(0, nil))
		b.at(time.Minute)
		close(b.lease.done)
		b.at(time.Minute)
	}, answer(0, errTrouble))
	resumed := term + attempt/4*18 // the first retry after 18 s
	c.check(t,
		"3s held trouble=true unanswered=true",
		"10s suspended trouble=true unanswered=true",
		resumed.String()+" held trouble=false unanswered=false",
		"1m0s lost trouble=false unanswered=false",
	)
	for _, want := range []string{
		`level=WARN msg="lock session not renewed" after=3s writes_wait_in=7s error="no renewal was answered in time: connection refused"`,
		`level=WARN msg="lock session suspended: writes wait" after=10s was=held writes_fail_in=15s error=`,
		`level=INFO msg="lock session resumed" after=` + (resumed - term).String() + ` was=suspended`,
		`level=ERROR msg="lock session lost: writes fail"`,
		`was=held error="lease gone: reported by the lock service"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in the log:\n%s", want, &log)
		}
	}
}

// The end of a session that its user closes is no error.
func TestCloseIsNoError(t *testing.T) {
	var log bytes.Buffer
	runConfig(t, renew.Config{TTL: ttl, Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(b *bench) { b.Close() }, answer(0, nil))
	if !strings.Contains(log.String(), `msg="lock session closed"`) || strings.Contains(log.String(), "error=") {
		t.Errorf("the log:\n%s", &log)
	}
}

// A Renew that does not return is reported before the session is Suspended:
// that is the time in which dirty data can still go to the volume.
func TestOverdueRenewalIsReported(t *testing.T) {
	var c changes
	runConfig(t, renew.Config{TTL: ttl, OnChange: c.add}, func(b *bench) {
		b.at(term - 1)
		c.check(t, "4.875s held trouble=false unanswered=true")
	}, deaf(time.Hour, nil))
}

func TestTroubleIsReportedOncePerTrouble(t *testing.T) {
	var c changes
	runConfig(t, renew.Config{TTL: ttl, OnChange: c.add}, func(b *bench) {
		b.at(9 * time.Second)
		c.check(t, "3s held trouble=true unanswered=true", "6.9375s held trouble=true unanswered=true")
	}, answer(0, errTrouble), answer(0, errTrouble), answer(0, nil), answer(0, errTrouble), answer(0, nil))
}

func TestSlowObserverHoldsUpNobody(t *testing.T) {
	slow := func(renew.State, error) { <-time.After(time.Hour) }
	runConfig(t, renew.Config{TTL: ttl, OnChange: slow}, func(b *bench) {
		b.stateAt(term, renew.Suspended)
		b.stateAt(term+ttl, renew.Lost)
	}, answer(0, errTrouble))
}

func TestEachRenewalIsReported(t *testing.T) {
	var told []string
	cfg := renew.Config{TTL: ttl, OnRenewal: func(took time.Duration, err error) {
		told = append(told, fmt.Sprint(time.Since(bubbleStart), " ", took, " ", err))
	}}
	runConfig(t, cfg, func(b *bench) { b.at(8 * time.Second) },
		answer(time.Second, nil), answer(0, errTrouble), answer(0, nil))
	want := []string{"4s 1s <nil>", "6s 0s " + errTrouble.Error(), (6*time.Second + attempt/4).String() + " 0s <nil>"}
	if !slices.Equal(told, want) {
		t.Errorf("OnRenewal was told %q, want %q", told, want)
	}
}
