package main

import (
	"context"
	"testing"
	"time"

	"github.com/lockfs/lockfs/lockmgr"
)

// ttls is a lock service with sessions of these TTLs; 0: one that has just ended.
type ttls map[string]time.Duration

func (s ttls) Sessions(context.Context) (map[string]lockmgr.SessionInfo, error) {
	found := make(map[string]lockmgr.SessionInfo)
	for id := range s {
		found[id] = lockmgr.SessionInfo{}
	}
	return found, nil
}

func (s ttls) SessionTTL(_ context.Context, id string) (time.Duration, error) {
	if s[id] == 0 {
		return 0, lockmgr.ErrSessionLost
	}
	return s[id], nil
}

// 'lockfs move' watches a dead mount for its TTL, however long that is.
func TestMoveWatchesForTheLongestTTL(t *testing.T) {
	for _, c := range []struct {
		service ttls
		want    time.Duration
	}{
		{nil, 0},
		{ttls{"a": 10 * time.Second, "b": 2 * time.Minute, "c": time.Minute, "d": 0}, 2 * time.Minute},
	} {
		if ttl, err := longestTTL(t.Context(), c.service); ttl != c.want || err != nil {
			t.Errorf("%v: %v, %v", c.service, ttl, err)
		}
	}
}
