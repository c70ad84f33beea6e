package fs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// ErrBusy: requests under way did not end in time.
var ErrBusy = errors.New("requests are under way in the volume")

// CanPause returns an error if the view cannot be paused at all.
func (f *FS) CanPause() error { return f.kernel.canPause() }

// Pause stops the view, after CanPause. Until Resume, its programs wait. If requests under way do not end before
// ctx does, the view goes on, and Pause fails with ErrBusy.
func (f *FS) Pause(ctx context.Context) error {
	if err := f.housekeeping.end(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err := f.kernel.divert(); err != nil {
		f.housekeeping.begin()
		return err
	}
	f.visits.pause()
	f.locks.HandOn()
	if err := f.kernel.drain(ctx); err != nil {
		for _, s := range f.kernel.former {
			f.strays.add(s.done)
		}
		return cmp.Or(f.Resume(), err) // if it cannot go on, nobody is to try again
	}
	return nil
}

// Resume serves a paused view again, with the requests that have waited. After an error the view
// ends: see Wait.
func (f *FS) Resume() error {
	next, err := f.kernel.replay(f.kernel.requests)
	if err != nil {
		f.housekeeping.beginNothing()
		f.kernel.fail(err)
		return err
	}
	f.locks.GoOn()
	return f.goOn(next)
}

// goOn ends a pause, here or in the process that has taken the view over.
func (f *FS) goOn(next *standby) error {
	f.visits.goOn()
	err := f.kernel.begin(next)
	if err != nil {
		f.locks.Refuse() // or requests would wait in line, and the view could not end
	}
	f.housekeeping.begin()
	return err
}
