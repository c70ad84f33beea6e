package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
)

// takenKey is the lock of a process that is killed.
const takenKey = "dir/file"

// holderConfig configures the holder.
type holderConfig struct {
	System, Volume string
	Endpoints      []string
	Lifelines      string // a directory
}

// serveHolder is the hidden mode that holds a lock until it is killed.
func serveHolder(args []string) error {
	if len(args) != 1 {
		return errors.New("want a configuration")
	}
	var h holderConfig
	if err := json.Unmarshal([]byte(args[0]), &h); err != nil {
		return err
	}
	ctx := context.Background()
	client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{Endpoints: h.Endpoints})
	if err != nil {
		return err
	}
	l, err := h.open(ctx, client)
	if err != nil {
		return err
	}
	if _, err := l.lock(ctx, takenKey); err != nil {
		return err
	}
	parentEnds()
	return l.close(ctx)
}

// open is newLocker, with a lifeline for lockfs.
func (h holderConfig) open(ctx context.Context, client *clientv3.Client) (locker, error) {
	if h.System != "lockfs" {
		return newLocker(ctx, h.System, client, h.Volume, takeoverTTL)
	}
	line, err := lifeline.Hold(h.Lifelines, 0)
	if err != nil {
		return nil, err
	}
	return newManager(ctx, client, h.Volume, takeoverTTL, lockmgr.SessionInfo{Node: "bench", Lifeline: line.ID})
}

// takeover measures from kill -9 to the next grant: by the end of the lease, in TTLs, or by a
// successor's proof and revoke, in seconds.
func takeover(succeed bool) func(context.Context, *bench, *cluster, string) ([]float64, error) {
	return func(ctx context.Context, b *bench, c *cluster, system string) (_ []float64, err error) {
		volume := c.volume()
		lifelines := filepath.Join(c.dir, "alive-"+volume)
		dying, err := c.holder(ctx, holderConfig{system, volume, c.endpoints, lifelines})
		if err != nil {
			return nil, err
		}
		defer dying.kill()
		next, err := newLocker(ctx, system, c.clients[0], volume, ttl)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, next.close(ctx)) }()
		granted := make(chan error, 1)
		var at time.Time
		go func() {
			_, err := next.lock(ctx, takenKey)
			at = time.Now()
			granted <- err
		}()
		if err := c.awaitKeys(ctx, prefixOf(system, volume), 2); err != nil {
			return nil, err
		}
		time.Sleep(rand.N(takeoverTTL / 3)) // at a random time since the last renewal
		killed := time.Now()
		dying.kill()
		if succeed {
			if err := revokeDead(ctx, c.clients[0], volume, lifelines); err != nil {
				return nil, err
			}
		}
		if err := <-granted; err != nil {
			return nil, err
		}
		took := at.Sub(killed).Seconds()
		if !succeed {
			took /= takeoverTTL.Seconds()
		}
		return []float64{took}, nil
	}
}

func (c *cluster) holder(ctx context.Context, h holderConfig) (*child, error) {
	arg, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(h.Lifelines, 0o700); err != nil {
		return nil, err
	}
	p, err := startChild("holder", string(arg), filepath.Join(c.dir, "holder-"+h.Volume+".log"))
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := c.awaitKeys(bounded, prefixOf(h.System, h.Volume), 1); err != nil {
		p.kill()
		return nil, fmt.Errorf("the holder holds nothing: %w: %s", err, p.log())
	}
	return p, nil
}

// revokeDead ends the sessions whose process is proved dead.
func revokeDead(ctx context.Context, client *clientv3.Client, volume, lifelines string) error {
	b, err := newBackend(client, volume)
	if err != nil {
		return err
	}
	found, err := b.Sessions(ctx)
	if err != nil {
		return err
	}
	for id, info := range found {
		if info.Lifeline == "" {
			continue
		}
		line, err := lifeline.Claim(lifelines, info.Lifeline)
		if err != nil {
			return err
		}
		if err := b.Revoke(ctx, id); err != nil {
			return err
		}
		line.Close()
	}
	return nil
}
