package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/etcdlock"
	"github.com/lockfs/lockfs/policy"
	"github.com/lockfs/lockfs/renew"
)

// viewConfig configures a view.
type viewConfig struct {
	Endpoints []string // of etcd
	Volume    string
	Source    string
	Dir       string // where it is mounted
	Flock     policy.Flock
	Policy    string
}

// serveView is the hidden mode that is a view, as 'lockfs mount' makes it by default.
func serveView(args []string) error {
	if len(args) != 1 {
		return errors.New("want a configuration")
	}
	var v viewConfig
	if err := json.Unmarshal([]byte(args[0]), &v); err != nil {
		return err
	}
	rules, err := policy.Parse(policy.Source{Name: "bench", Text: v.Policy})
	if err != nil {
		return err
	}
	ctx := context.Background()
	client, err := etcdlock.Dial(ctx, etcdlock.DialConfig{Endpoints: v.Endpoints, DialTimeout: startTimeout})
	if err != nil {
		return err
	}
	b, err := newBackend(client, v.Volume)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	locks, err := lockmgr.New(ctx, lockmgr.Config{
		Backend: b, Session: lockmgr.SessionInfo{Node: "bench", Mountpoint: v.Dir},
		Renew: renew.Config{TTL: config.DefaultTTL}, Keep: config.DefaultKeep, Logger: log,
	})
	if err != nil {
		return err
	}
	view, err := fs.Mount(v.Dir, fs.Config{
		Source: v.Source, Locks: locks, Wait: config.DefaultWait, NameWait: config.DefaultNameWait,
		Flock: v.Flock, Policy: rules, Logger: log,
	})
	if err != nil {
		return errors.Join(err, locks.Close(ctx))
	}
	parentEnds()
	end, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return errors.Join(view.Close(end), locks.Close(end))
}

// startView returns when the view of a new directory is there, with a function that ends it.
func startView(ctx context.Context, c *cluster, flock policy.Flock, rules string) (dir string, end func() error, err error) {
	home, err := os.MkdirTemp(c.dir, "view")
	if err != nil {
		return "", nil, err
	}
	v := viewConfig{
		Endpoints: c.endpoints, Volume: c.volume(), Flock: flock, Policy: rules,
		Source: filepath.Join(home, "source"), Dir: filepath.Join(home, "view"),
	}
	if err := errors.Join(os.Mkdir(v.Source, 0o700), os.Mkdir(v.Dir, 0o700)); err != nil {
		return "", nil, err
	}
	arg, err := json.Marshal(v)
	if err != nil {
		return "", nil, err
	}
	below, err := deviceOf(v.Dir)
	if err != nil {
		return "", nil, err
	}
	view, err := startChild("view", string(arg), filepath.Join(home, "log"))
	if err != nil {
		return "", nil, err
	}
	end = func() error {
		view.stop()
		return os.RemoveAll(home)
	}
	for late := time.Now().Add(startTimeout); ; {
		if dev, err := deviceOf(v.Dir); err == nil && dev != below {
			return v.Dir, end, nil
		}
		if time.Now().After(late) || ctx.Err() != nil {
			err := fmt.Errorf("no view at %s\n%s", v.Dir, view.log())
			return "", nil, errors.Join(err, end())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func deviceOf(dir string) (uint64, error) {
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	return st.Dev, err
}

// mounts returns why this machine cannot have a view.
func mounts() error {
	if err := unix.Access("/dev/fuse", unix.R_OK|unix.W_OK); err != nil {
		return fmt.Errorf("/dev/fuse: %w", err)
	}
	if os.Geteuid() == 0 {
		return nil
	}
	_, err := exec.LookPath("fusermount3")
	return err
}
