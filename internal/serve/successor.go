package serve

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/lockmgr"
)

type sessions interface {
	Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error)
	Revoke(ctx context.Context, id string) error
}

// successor ends the sessions of this volume's dead mounts on this machine, so that nobody
// waits for their leases to expire.
type successor struct {
	service sessions
	dir     string // of the volume's lifelines
	source  string
	dev     uint64 // of source
	bootID  string
	flush   func(source string) error // mounts.Sync
	log     *slog.Logger
}

// newSuccessor takes the volume's id: a name can mean another directory later.
func newSuccessor(service sessions, stateDir string, volume uuid.UUID, source, bootID string, log *slog.Logger) (*successor, error) {
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", source, err)
	}
	return &successor{
		service: service, dir: filepath.Join(stateDir, "alive", volume.String()),
		source: source, dev: st.Dev, bootID: bootID, flush: mounts.Sync, log: log,
	}, nil
}

// succeed revokes the sessions that are proved dead. No failure here stops the mount.
func (s *successor) succeed(ctx context.Context) {
	found, err := s.service.Sessions(ctx)
	lines := make(map[string]*lifeline.Line)
	if err == nil {
		lines = s.claim(found)
	}
	if len(lines) > 0 { // a mount with many locks has several sessions: stop starting more
		found, err = s.service.Sessions(ctx)
	}
	if err != nil {
		s.log.Warn("cannot look for mounts that have died here", slog.Any("error", err))
	}
	flushing, cancel := halfOf(ctx) // a busy volume leaves time to mount
	defer cancel()
	for _, line := range lines {
		if err == nil && s.end(ctx, flushing, line, found) {
			line.Close()
			continue
		}
		line.Leave()
	}
	if err != nil {
		return
	}
	needed := make(map[string]bool)
	for _, info := range found {
		needed[info.Lifeline] = true
	}
	_ = lifeline.Sweep(s.dir, func(id string) bool { return needed[id] })
}

func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	if end, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(end)/2)
	}
	return context.WithCancel(ctx)
}

// claim returns the lifelines of sessions whose mounts have died on this machine.
func (s *successor) claim(found map[string]lockmgr.SessionInfo) map[string]*lifeline.Line {
	dead := make(map[string]*lifeline.Line)
	for _, info := range found {
		if info.BootID != s.bootID || info.Lifeline == "" || dead[info.Lifeline] != nil {
			continue
		}
		if line, err := lifeline.Claim(s.dir, info.Lifeline); err == nil {
			dead[line.ID] = line
		}
	}
	return dead
}

// end ends all sessions of a dead mount after a sync: cached writes would come late. The sync may
// take until flushing ends.
func (s *successor) end(ctx, flushing context.Context, line *lifeline.Line, found map[string]lockmgr.SessionInfo) bool {
	synced := s.sync(flushing, line)
	all := true
	for id, info := range found {
		if info.Lifeline != line.ID || info.BootID != s.bootID {
			continue
		}
		err := synced
		if err == nil {
			err = s.service.Revoke(ctx, id)
		}
		log := s.log.With(slog.String("session", id), slog.String("mountpoint", info.Mountpoint))
		if err != nil {
			log.Warn("a mount has died here; its locks end with their lease", slog.Any("error", err))
			all = false
			continue
		}
		log.Info("ended the session of a mount that has died here")
	}
	return all
}

func (s *successor) sync(ctx context.Context, line *lifeline.Line) error {
	if line.Dev != s.dev {
		return fmt.Errorf("it wrote to %s by another mount, whose cache cannot be flushed from here", s.source)
	}
	synced := make(chan error, 1)
	go func() { synced <- s.flush(s.source) }() // a volume that does not answer blocks it for ever
	select {
	case err := <-synced:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the volume does not answer: %w", ctx.Err())
	}
}
