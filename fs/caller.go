package fs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

type callers struct {
	procs     procid.Proc // the machine's
	cache     procid.Cache
	podName   func(procid.Caller) (name, container string) // may be nil
	dev       string                                       // of the mount, as /proc names it; "" if unknown
	readLocks bool
	// families bounds the concurrent searches of familyHasOpen: whether an open would wait for its
	// own process.
	families *gate

	strays  strays
	looking atomic.Int64 // requests whose callers may have signals
}

// openOwner is the owner of an open in scope handle: each open is its own owner.
func openOwner(procid.Process) lockmgr.Owner { return lockmgr.Owner("handle " + uuid.NewString()) }

// callOwner is the owner in scope handle of a call without a handle: its process, if it lives.
func (cs *callers) callOwner(p procid.Process) lockmgr.Owner {
	if p == (procid.Process{}) {
		return openOwner(p)
	}
	return processOwner(p)
}

func processOwner(p procid.Process) lockmgr.Owner {
	return lockmgr.Owner(fmt.Sprintf("process %d %d", p.PID, p.Start))
}

// caller returns a request for locks by in's caller, still without keys. If the caller is the
// kernel or a dead process, it is an owner of its own. files are those for which the request may
// wait, by their numbers in the view. single returns the owner in scope handle. caller fails only
// for lack of descriptors or memory.
func (cs *callers) caller(in *fuse.InHeader, files []uint64, scope policy.Scope, single func(procid.Process) lockmgr.Owner) (lockmgr.Request, error) {
	c := lockmgr.Request{Holder: lockmgr.Holder{UID: in.Uid}}
	p, err := cs.cache.Lookup(int(in.Pid))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return c, fmt.Errorf("cannot find out whose request it is: %w", err)
	}
	if err == nil {
		c.Holder.PID, c.Holder.Comm, c.Holder.Pod = p.Process.PID, p.Comm, p.Pod
		if p.Pod != "" && cs.podName != nil {
			c.Holder.PodName, c.Holder.Container = cs.podName(p)
		}
		if len(files) > 0 && cs.dev != "" {
			c.SelfWait = func(ctx context.Context) bool { return cs.familyHasOpen(ctx, in, p.Process.PID, files) }
		}
	}
	switch {
	case scope == policy.ScopeNode:
		c.Owner = "node"
	case scope == policy.ScopeHandle || err != nil:
		c.Owner = single(p.Process)
	case scope != policy.ScopeProcess && p.Pod != "":
		c.Owner = lockmgr.Owner("pod " + p.Pod)
	default: // scope process, or a caller outside of pods
		c.Owner = processOwner(p.Process)
	}
	return c, nil
}

// familyHasOpen reports whether the open would wait for its own process or an ancestor.
// Descriptors are inherited, so it does not matter who opened the file.
func (cs *callers) familyHasOpen(ctx context.Context, in *fuse.InHeader, pid int, files []uint64) bool {
	if cs.families.reenter(ctx, in, guest{}) != nil {
		return false
	}
	defer cs.families.leave(in.Unique)
	return slices.ContainsFunc(files, func(ino uint64) bool {
		return cs.procs.FamilyHasOpen(ctx, pid, procid.File{Dev: cs.dev, Ino: ino}, cs.readLocks)
	})
}

// killable ends only when the caller is being killed: programs expect EINTR only from open.
func (cs *callers) killable(cancel <-chan struct{}, tid uint32) (context.Context, context.CancelFunc) {
	return cs.interrupted(cancel, tid, 0)
}

const (
	// signalGrace is how long no signal but SIGKILL interrupts an open: an open of a local file is
	// not interrupted either.
	signalGrace = time.Second

	killPoll = 20 * time.Millisecond
	// killPollEach slows down the polls of many: together they look 1,000 times a second.
	killPollEach = time.Millisecond
)

// awaitSignal returns when thread tid is being killed, or has any signal after late, or ctx has ended.
func (cs *callers) awaitSignal(ctx context.Context, cancel <-chan struct{}, late <-chan time.Time, tid int) {
	anySignal := false
	for told := false; ; {
		var strays <-chan struct{}
		if tid != 0 { // no signal is for the kernel
			strays = cs.strays.some()
		}
		select {
		case <-cancel:
			told = true
		case <-strays:
		case <-ctx.Done():
			return
		}
		// The kernel reports only the first signal, and not which one it is: SIGKILL may follow.
		// For requests of a replaced server it reports none.
		n := cs.looking.Add(1)
		if cs.procs.KillPending(tid) || anySignal && (told || cs.procs.SignalPending(tid)) {
			cs.looking.Add(-1)
			return
		}
		select {
		case <-late:
			anySignal = true
		case <-time.After(max(killPoll, time.Duration(n)*killPollEach)):
		case <-ctx.Done():
		}
		cs.looking.Add(-1)
	}
}

// interrupted polls after killPoll: most requests end sooner, and need no goroutine. Any signal
// counts after anyAfter, unless that is 0.
func (cs *callers) interrupted(cancel <-chan struct{}, tid uint32, anyAfter time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.Background())
	watch := time.AfterFunc(killPoll, func() {
		var late <-chan time.Time
		if anyAfter > 0 {
			late = time.After(anyAfter - killPoll)
		}
		cs.awaitSignal(ctx, cancel, late, int(tid))
		stop()
	})
	return ctx, func() {
		watch.Stop()
		stop()
	}
}
