package metrics

import (
	"context"
	"errors"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

func modeName(m lockmgr.Mode) string {
	if m == lockmgr.Shared {
		return "shared"
	}
	return "exclusive"
}

// requestUnavailable: the lock service did not answer.
const requestUnavailable = "unavailable"

func requestResult(e lockmgr.RequestEnded) string {
	switch err := e.Err; {
	case err == nil && e.Joined:
		return "joined"
	case err == nil && e.Kept:
		return "kept"
	case err == nil:
		return "granted"
	case errors.Is(err, context.Canceled): // a signal ended the wait
		return "interrupted"
	case errors.Is(err, lockmgr.ErrDeadlock):
		return "deadlock"
	case errors.Is(err, lockmgr.ErrContended):
		return "contended"
	case errors.Is(err, lockmgr.ErrUnavailable):
		return requestUnavailable
	}
	return "failed"
}

// The causes of losses.
const (
	causeBroken     = "broken"     // by an operator
	causeDeleted    = "deleted"    // the entry, by hand
	causeGone       = "gone"       // the session: the lock service ended it
	causeVolume     = "volume"     // its client is gone
	causeUnanswered = "unanswered" // the session: no renewal was answered in time
)

func lossCause(err error) string {
	switch {
	case errors.Is(err, lockmgr.ErrBroken):
		return causeBroken
	case errors.Is(err, lockmgr.ErrVolumeGone):
		return causeVolume
	case errors.Is(err, renew.ErrUnanswered):
		return causeUnanswered
	case errors.Is(err, renew.ErrGone), errors.Is(err, lockmgr.ErrSessionLost):
		return causeGone
	}
	return causeDeleted
}

// closed reports whether the daemon itself ended the session.
func closed(cause error) bool { return errors.Is(cause, renew.ErrClosed) }

func renewalResult(err error) string {
	if err != nil {
		return "failed"
	}
	return "ok"
}
