package serve

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/internal/lifeline"
	"github.com/lockfs/lockfs/internal/mounts"
	"github.com/lockfs/lockfs/lockmgr"
)

// sessions is what of a lock service a successor needs.
type sessions interface {
	Sessions(ctx context.Context) (map[string]lockmgr.SessionInfo, error)
	Revoke(ctx context.Context, id string) error
}

// successor ends the sessions of mounts of this volume that have died on this
// machine, so that nobody has to wait for their leases to expire.
type successor struct {
	service sessions
	dir     string // of the volume's lifelines
	source  string
	dev     uint64 // of source
	bootID  string
	log     *slog.Logger
}

// newSuccessor needs the volume's id: directories of one name may be others.
func newSuccessor(service sessions, stateDir string, volume uuid.UUID, source, bootID string, log *slog.Logger) (*successor, error) {
	var st unix.Stat_t
	if err := unix.Stat(source, &st); err != nil {
		return nil, fmt.Errorf("stat %s: %w", source, err)
	}
	return &successor{
		service: service, dir: filepath.Join(stateDir, "alive", volume.String()),
		source: source, dev: st.Dev, bootID: bootID, log: log,
	}, nil
}

// succeed revokes what it can prove dead. What it cannot is left to its lease:
// no failure keeps the mount from starting.
func (s *successor) succeed(ctx context.Context) {
	found, err := s.service.Sessions(ctx)
	if err != nil {
		s.log.Warn("cannot look for mounts that have died here", slog.Any("error", err))
		return
	}
	needed := make(map[string]bool)
	for id, info := range found {
		needed[info.Lifeline] = true
		if info.BootID != s.bootID || info.Lifeline == "" {
			continue
		}
		line, err := lifeline.Claim(s.dir, info.Lifeline)
		if err != nil {
			continue // it lives, or is another machine's
		}
		log := s.log.With(slog.String("session", id), slog.String("mountpoint", info.Mountpoint))
		if err := s.end(ctx, id, line); err != nil {
			log.Warn("a mount has died here; its locks end with their lease", slog.Any("error", err))
			line.Leave()
			continue
		}
		log.Info("ended the session of a mount that has died here")
		line.Close()
	}
	_ = lifeline.Sweep(s.dir, func(id string) bool { return needed[id] })
}

// end ends a dead mount's session once all it wrote is on the volume: what is
// still in this machine's cache would come late.
func (s *successor) end(ctx context.Context, id string, line *lifeline.Line) error {
	if line.Dev != s.dev {
		return fmt.Errorf("it wrote to %s by another mount, whose cache cannot be flushed from here", s.source)
	}
	synced := make(chan error, 1)
	go func() { synced <- mounts.Sync(s.source) }() // a volume that does not answer blocks it for ever
	select {
	case err := <-synced:
		if err != nil {
			return err
		}
	case <-ctx.Done():
		return fmt.Errorf("the volume does not answer: %w", ctx.Err())
	}
	return s.service.Revoke(ctx, id)
}
