package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime/pprof"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/fs"
	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/lockmgrtest"
	"github.com/lockfs/lockfs/renew"
)

// serveView is the lockfs daemon for a source, a mountpoint, and a file for a CPU profile or "":
// 'lockfs mount' by default, except for the lock service.
func serveView(args []string) (err error) {
	if len(args) != 3 {
		return errors.New("want source, mountpoint and profile")
	}
	source, mountpoint, profile := args[0], args[1], args[2]
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if profile != "" {
		file, err := os.Create(profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return err
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, file.Close())
		}()
	}
	// Each inode that the kernel knows needs a descriptor, so raise the limit.
	const files = 1 << 20
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: files})
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	locks, err := lockmgr.New(ctx, lockmgr.Config{
		Backend: lockmgrtest.NewMemory(), Session: lockmgr.SessionInfo{Node: "bench", Mountpoint: mountpoint},
		Renew: renew.Config{TTL: config.DefaultTTL}, Keep: config.DefaultKeep, Logger: log,
	})
	if err != nil {
		return err
	}
	view, err := fs.Mount(mountpoint, fs.Config{
		Source: source, Locks: locks, Wait: config.DefaultWait, NameWait: config.DefaultNameWait, AllowOther: true, Logger: log,
	})
	if err != nil {
		return errors.Join(err, locks.Close(ctx))
	}
	unmounted := make(chan struct{})
	go func() { view.Wait(); close(unmounted) }()
	select {
	case <-ctx.Done():
	case <-unmounted:
	}
	end, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return errors.Join(view.Close(end), locks.Close(end))
}
