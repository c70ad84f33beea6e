package volume

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// settleService compares the mount's lock service with that of the marker, which is the
// volume's. An embedded one may replace another whose state was lost: the flock on Source
// proves that nobody serves it.
func settleService(cfg Config, marker identity, service lockmgr.Service) (identity, error) {
	if marker.Service.Is(service) {
		return marker, nil
	}
	if !cfg.Alone || marker.Service.Kind != lockmgr.KindEmbedded || service.Kind != lockmgr.KindEmbedded {
		return marker, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: service}
	}
	marker.Service = service
	return marker, replaceMarker(cfg.Source, marker)
}

// settleMove compares the record with the marker. If the volume has moved away and back, the
// record is replaced.
func settleMove(ctx context.Context, cfg Config, marker, record identity, stored []byte) (identity, []byte, error) {
	if record.Service.Is(marker.Service) && record.Moves == marker.Moves {
		return record, stored, nil
	}
	if record.Moves >= marker.Moves {
		return record, stored, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: marker.Service, Moved: record.Service}
	}
	next := marker.encode()
	if err := cfg.Record.ReplaceVolumeRecord(ctx, stored, next, noPolicy); err != nil {
		return record, stored, fmt.Errorf("the volume has come back to this lock service: %w", err)
	}
	return marker, next, nil
}

// noPolicy is what no mount enforces: all are in the way of a move.
const noPolicy = ""

// MoveConfig is one move of a volume. All fields are required.
type MoveConfig struct {
	Source string
	// Record is the record in the volume's present lock service. nil: that is gone for
	// ever, and cannot be asked whether a mount is alive.
	Record RecordStore
	To     lockmgr.Service
}

// Move names another lock service in the marker of a volume, while no mount of it is alive.
// First the record in the former service names it too, for good: a mount that was not seen
// can open no session there any more. To finish an interrupted Move, call it again.
//
// A service knows one successor, and each move has a larger number than those before. So an
// outdated marker, such as one from a backup, names a service that says that the volume has
// moved on.
//
// Errors: *lockmgr.VolumeInUseError; *ServiceError if Record is not of the volume's
// service, or says that the volume has moved elsewhere; *InvalidError; the file system's,
// the record store's.
func Move(ctx context.Context, cfg MoveConfig) error {
	marker, err := readMarker(cfg.Source)
	if err != nil {
		return err
	}
	next := marker
	if cfg.Record != nil {
		if next, err = leave(ctx, cfg, marker); err != nil {
			return err
		}
	}
	next.Format, next.Service = format, cfg.To
	next.Moves = max(next.Moves, marker.Moves+1)
	return replaceMarker(cfg.Source, next)
}

// leave makes the present service's record name the next service.
func leave(ctx context.Context, cfg MoveConfig, marker identity) (next identity, err error) {
	service, err := cfg.Record.Service(ctx)
	if err != nil {
		return next, err
	}
	if marker.Format > 1 && !marker.Service.Is(service) {
		return next, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: service}
	}
	record, stored, err := openRecord(ctx, cfg.Record, marker, nil)
	if err != nil {
		return next, err
	}
	if !record.sameVolume(marker) {
		return next, disagree(Config{Source: cfg.Source, Namespace: marker.Namespace, Name: marker.Name}, marker, record, false)
	}
	if record.Moves > marker.Moves && !record.Service.Is(service) { // the volume has left
		if !record.Service.Is(cfg.To) {
			return next, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: service, Moved: record.Service}
		}
		return record, nil
	}
	next = record
	next.Format, next.Service, next.Moves = format, cfg.To, max(record.Moves, marker.Moves)+1
	return next, cfg.Record.ReplaceVolumeRecord(ctx, stored, next.encode(), noPolicy)
}

// ServiceFinder tells which lock service it is, without changing it.
type ServiceFinder interface {
	// FindService returns the service. Its ID is uuid.Nil if no mount of the volume has
	// asked for it yet.
	FindService(ctx context.Context) (lockmgr.Service, error)
}

// CheckLook fails unless the lock service is the volume's. It changes nothing. A marker of
// format 1 does not name a service, and is accepted.
func CheckLook(ctx context.Context, source string, asked ServiceFinder) error {
	has, err := ServiceOf(source)
	if err != nil || has.ID == uuid.Nil {
		return err
	}
	is, err := asked.FindService(ctx)
	if err != nil || has.Is(is) {
		return err
	}
	return &OtherServiceError{Source: source, Has: has, Asked: is}
}

// ServiceOf returns the lock service of the volume with the root source, from its marker;
// the zero value for format 1. Errors are NameOf's.
func ServiceOf(source string) (lockmgr.Service, error) {
	id, err := readMarker(source)
	return id.Service, err
}
