package embedetcd

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
)

// bounds limit the files of an etcd without an operator, whatever is written.
type bounds struct {
	// tidy is the size of the database at which history is dropped and unused space freed.
	tidy int64
	// quota is the size at which etcd accepts nothing new. Only history can reach it.
	quota int64
	// wals is how many log files are kept that etcd no longer needs.
	wals int
	// every is how often the files are checked.
	every time.Duration
}

var ordinary = bounds{tidy: 64 << 20, quota: 256 << 20, wals: 1, every: time.Second}

// keep limits the files until ctx ends.
func (b bounds) keep(ctx context.Context, e *embed.Etcd, lg *zap.Logger) {
	tick := time.NewTicker(b.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		b.purge(e.Server.Cfg.WALDir(), lg)
		if err := b.shrink(ctx, e); err != nil {
			lg.Warn("cannot make room in the database", zap.Error(err))
		}
	}
}

// shrink compacts a database that has grown, frees its unused space if that is the larger
// part, and ends the alarm if it was at its quota.
func (b bounds) shrink(ctx context.Context, e *embed.Etcd) error {
	s := e.Server
	full := slices.ContainsFunc(s.Alarms(), func(a *pb.AlarmMember) bool { return a.Alarm == pb.AlarmType_NOSPACE })
	if !full && s.Backend().Size() < b.tidy {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if rev := s.KV().Rev(); rev > s.KV().FirstRev() {
		// Physical: the space is free when it returns. It fails if somebody else has compacted.
		_, err := s.Compact(ctx, &pb.CompactionRequest{Revision: rev, Physical: true})
		if err != nil && !full {
			return err
		}
	}
	if be := s.Backend(); be.Size() > 2*be.SizeInUse() || full {
		if err := s.Defragment(); err != nil {
			return err
		}
	}
	if !full || s.Backend().Size() > b.quota*3/4 {
		return nil // the current locks need too much, until some are released
	}
	_, err := s.Alarm(ctx, &pb.AlarmRequest{
		Action: pb.AlarmRequest_DEACTIVATE, Alarm: pb.AlarmType_NOSPACE, MemberID: uint64(s.MemberID())})
	return err
}

// purge removes log files older than needed. etcd does so itself, but only every 30 s.
func (b bounds) purge(dir string, lg *zap.Logger) {
	names, err := fileutil.ReadDir(dir, fileutil.WithExt(".wal")) // in order of age
	if err != nil {
		lg.Warn("cannot look for old files of the log", zap.Error(err))
		return
	}
	for len(names) > b.wals {
		name := filepath.Join(dir, names[0])
		names = names[1:]
		f, err := fileutil.TryLockFile(name, os.O_WRONLY, fileutil.PrivateFileMode)
		if err != nil {
			return // in use, as are all later ones
		}
		if err := os.Remove(name); err != nil {
			lg.Warn("cannot remove an old file of the log", zap.Error(err))
		}
		f.Close()
	}
}
