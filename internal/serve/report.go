package serve

import (
	"context"
	"time"

	"github.com/lockfs/lockfs/internal/status"
	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/lockmgr"
)

// longestWaits is how many waits of each volume 'lockfs status' lists.
const longestWaits = 3

type renewals struct {
	answered time.Time     // when a renewal was last answered
	took     time.Duration // how long that renewal took
	err      error         // of the last renewal, if it failed
}

func (v *Volume) noteRenewal(e lockmgr.Event) {
	r, ok := e.(lockmgr.SessionRenewed)
	if !ok {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.renewals.err = r.Err; r.Err == nil {
		v.renewals.answered, v.renewals.took = time.Now(), r.Took
	}
}

func (v *Volume) describe() status.View {
	v.mu.Lock()
	locks, view, service, last := v.locks, v.view, v.service, v.renewals
	at := status.View{Source: v.cfg.Source, Mountpoint: v.mountpoint}
	v.mu.Unlock()
	if locks == nil {
		return at
	}
	at.LockService = service.String()
	at.Session = &status.Session{
		State: locks.State().String(), TTL: v.cfg.Renew.TTL.Seconds(),
		Answered: time.Since(last.answered).Seconds(), Took: last.took.Seconds(),
	}
	if last.err != nil {
		at.Session.Error = last.err.Error()
	}
	if taken := v.takenOver(); taken.Count > 0 {
		at.Takeovers = &status.Takeovers{
			Count: taken.Count, Ago: time.Since(taken.at).Seconds(), Took: taken.Took.Seconds(), Files: taken.Files, Locks: taken.Locks, Waiting: taken.Waiting,
			Deaths: taken.Deaths, Died: taken.died,
		}
	}
	now, files := locks.Stats(), view.Stats()
	at.Locks = &status.Locks{Held: now.Held, Waiting: now.Waiting}
	for _, w := range locks.Waits(longestWaits) {
		at.Locks.Longest = append(at.Locks.Longest, status.Wait{
			Path: w.Key.String(), Seconds: w.Waited.Seconds(), PID: w.Holder.PID, Command: w.Holder.Comm, Pod: w.Holder.PodLabel(),
		})
	}
	at.Files = &status.Files{Open: files.Open, UnderWay: files.UnderWay, Waiting: files.Waiting}
	return at
}

// Report runs all checks at once, for 'lockfs status'.
func Report(ctx context.Context, checks []Check) []status.View {
	errs := makeChecks(ctx, checks)
	views := make([]status.View, len(checks))
	for i, c := range checks {
		if c.View != nil {
			views[i] = c.View()
		}
		views[i].Volume, views[i].State = c.Name, status.Served
		if err := errs[i]; err != nil {
			views[i].State, views[i].Error = status.NotServed, err.Error()
			if c.Advisory {
				views[i].State = status.Trouble
			}
		}
		if c.Notes != nil {
			views[i].BrokenRules = c.Notes()
		}
	}
	return views
}

type serviceSeen struct {
	volume.RecordStore
	service lockmgr.Service
}

func (s *serviceSeen) Service(ctx context.Context) (lockmgr.Service, error) {
	var err error
	s.service, err = s.RecordStore.Service(ctx)
	return s.service, err
}
