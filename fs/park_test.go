package fs

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockfs/lockfs/internal/boottime"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

type bubbleClock struct{}

func (bubbleClock) Now() boottime.Instant { return boottime.Instant(time.Now().UnixNano()) }

// A lock is parked for the one thread that was sent to look again, for a
// second; a caller is sent once.
func TestParking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := lockmgrtest.NewMemory()
		m, err := lockmgr.New(t.Context(), lockmgr.Config{Backend: svc, Renew: renew.Config{TTL: 15 * time.Second, Clock: bubbleClock{}}})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(t.Context())
		key, err := lockmgr.FileKey("f")
		if err != nil {
			t.Fatal(err)
		}
		acquire := func() *lockmgr.Hold {
			h, err := m.Acquire(t.Context(), lockmgr.Request{Owner: "me", Keys: []lockmgr.Key{key}})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		var p parking
		mine, other := parkKey{tid: 1, key: key}, parkKey{tid: 2, key: key}

		hold := acquire()
		if !p.send(mine, hold) {
			t.Fatal("not sent to look again")
		}
		if p.take(other) != nil {
			t.Error("another thread fetched the lock")
		}
		time.Sleep(parkFor - time.Millisecond)
		if p.take(mine) != hold || svc.Count() != 1 {
			t.Error("the lock is not there any more")
		}
		if p.take(mine) != nil {
			t.Error("the lock was fetched twice")
		}
		if p.send(mine, hold) {
			t.Error("sent twice in one system call")
		}
		p.done(mine)
		if !p.send(mine, hold) {
			t.Error("the next system call is not sent")
		}
		time.Sleep(parkFor + time.Millisecond)
		synctest.Wait()
		if svc.Count() != 0 {
			t.Error("a lock that nobody fetched is still held")
		}
		if p.take(mine) != nil || p.send(mine, nil) {
			t.Error("what was sent is forgotten too early, or its lock too late")
		}
		time.Sleep(spentFor)
		if !p.send(mine, nil) {
			t.Error("what was sent is never forgotten")
		}

		// A caller who has looked since means a name, and is sent once more.
		if p.sendAgain(mine) {
			t.Error("sent again without having looked")
		}
		p.looked(other.tid, true)
		if p.sendAgain(mine) {
			t.Error("another thread's lookup counted")
		}
		p.looked(mine.tid, true)
		if p.send(mine, nil) {
			t.Error("sent twice in one system call, of one file")
		}
		if !p.sendAgain(mine) {
			t.Error("who has looked is not sent again")
		}
		// That one got through, and what comes without a look is the next call.
		if !p.sendAgain(mine) || p.sendAgain(mine) {
			t.Error("the call after the one that failed is not sent, or twice")
		}
		p.looked(mine.tid, true)
		p.looked(mine.tid, false) // ENOENT
		if !p.sendAgain(mine) || p.sendAgain(mine) {
			t.Error("the call after one that found nothing is not sent, or twice")
		}
		// The system call may have been sent for another file.
		elsewhere := parkKey{tid: mine.tid, key: lockmgr.Key{Path: "g"}}
		if !p.send(elsewhere, nil) || !p.sendAgain(elsewhere) || p.sendAgain(elsewhere) {
			t.Error("the call after the one that was sent for two files is not sent, or twice")
		}
		// Who waits in line was sent, however long ago that is.
		p.here(mine.tid, true)
		time.Sleep(10 * spentFor)
		if p.send(mine, nil) {
			t.Error("sent twice in one system call that took long")
		}
		p.here(mine.tid, false)
		time.Sleep(2 * spentFor)
		if !p.send(mine, nil) {
			t.Error("what was sent is never forgotten")
		}
		p.done(mine)
		p.done(elsewhere)
		p.send(elsewhere, nil)
		p.here(mine.tid, true)
		time.Sleep(10 * spentFor)
		if !p.send(mine, nil) || !p.sendAgain(mine) {
			t.Error("the call after a long one that was sent for two files is not sent")
		}
		if p.send(parkKey{key: key}, nil) {
			t.Error("a caller without a thread was sent: it cannot be told from others")
		}
	})
}
