package volume

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
)

// settleService compares the volume's lock service, which is that of the marker, with
// the mount's. An embedded one takes the place of another: whose state was lost, and
// of which the flock on Source says that nobody serves it.
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

// settleMove compares the record with the marker, which names its service. The volume
// may have been moved away and back since the record was put: that one is replaced.
func settleMove(ctx context.Context, cfg Config, marker, record identity, stored []byte) (identity, []byte, error) {
	if record.Service.Is(marker.Service) && record.Moves == marker.Moves {
		return record, stored, nil
	}
	if record.Moves >= marker.Moves {
		return record, stored, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: marker.Service, Moved: record.Service}
	}
	next := marker.encode()
	if err := cfg.Record.ReplaceVolumeRecord(ctx, stored, next); err != nil {
		return record, stored, fmt.Errorf("the volume has come back to this lock service: %w", err)
	}
	return marker, next, nil
}

// MoveConfig says which volume moves, and where to. All fields are required.
type MoveConfig struct {
	Source string
	// Record is the volume's in the lock service that it has; nil if that is gone
	// for ever, and nobody can ask it whether a mount lives.
	Record RecordStore
	To     lockmgr.Service
}

// Move names another lock service in the marker of a volume, while no mount of it
// lives. The record in the former service says so first, for good: a mount that was
// not seen finds that it cannot open a session there any more. A Move that was not
// finished is, by the same one once more.
//
// A service knows of one successor, and each move has a number larger than those
// before. So a marker that is out of date, as that of a backup, names a service which
// says that the volume has moved on.
//
// Errors: *lockmgr.VolumeInUseError; *ServiceError, when Record is not of the volume's
// service, or says that it has moved elsewhere; *InvalidError; the file system's, the record store's.
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

// leave has the record in the service that a volume has so far name its next one,
// and returns the record.
func leave(ctx context.Context, cfg MoveConfig, marker identity) (next identity, err error) {
	service, err := cfg.Record.Service(ctx)
	if err != nil {
		return next, err
	}
	if marker.Format > 1 && !marker.Service.Is(service) {
		return next, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: service}
	}
	record, stored, err := openRecord(ctx, cfg.Record, marker)
	if err != nil {
		return next, err
	}
	if !record.sameVolume(marker) {
		return next, disagree(Config{Source: cfg.Source, Namespace: marker.Namespace, Name: marker.Name}, marker, record, false)
	}
	if record.Moves > marker.Moves && !record.Service.Is(service) { // it has left
		if !record.Service.Is(cfg.To) {
			return next, &ServiceError{Source: cfg.Source, Has: marker.Service, Asked: service, Moved: record.Service}
		}
		return record, nil
	}
	next = record
	next.Format, next.Service, next.Moves = format, cfg.To, max(record.Moves, marker.Moves)+1
	return next, cfg.Record.ReplaceVolumeRecord(ctx, stored, next.encode())
}

// ServiceFinder is a lock service that can be asked which one it is, and is not changed.
type ServiceFinder interface {
	// FindService says which lock service it is; the ID is uuid.Nil where no mount of
	// the volume has asked for it.
	FindService(ctx context.Context) (lockmgr.Service, error)
}

// CheckLook makes sure that the lock service is the volume's, and changes nothing. The
// marker of format 1 does not say which that is, and is taken as it is.
//
// Errors: *OtherServiceError; the file system's, the lock service's.
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

// ServiceOf returns the lock service of the volume whose root source is, as its
// marker says; of format 1, which does not, the zero value. Errors are NameOf's.
func ServiceOf(source string) (lockmgr.Service, error) {
	id, err := readMarker(source)
	return id.Service, err
}
