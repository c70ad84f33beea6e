package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// RecordStore keeps the volume's record in the lock service.
type RecordStore interface {
	// Service returns the identity of the lock service.
	Service(ctx context.Context) (lockmgr.Service, error)

	// VolumeRecord stores want as the record unless there is one, and returns the
	// record as it then is. Sessions are opened only while that stands, or another one
	// that admits says yes to.
	VolumeRecord(ctx context.Context, want []byte, admits func(stored []byte) bool) (stored []byte, err error)

	// ReplaceVolumeRecord puts want in the place of old. It fails, and changes nothing,
	// while any mount of the volume lives that does not enforce policy (see
	// lockmgr.SessionInfo), or if old is not the record.
	ReplaceVolumeRecord(ctx context.Context, old, want []byte, policy string) error
}

// Config says which volume a mount is for. All fields but SetPolicy, Flock, OtherFlock and Alone are required.
type Config struct {
	Source    string      // SOURCE, an absolute path
	Namespace string      // of the volume, see ValidateName
	Name      string      // of the volume, see ValidateName
	Policies  []string    // the digests of the policies that the mount enforces: one has to be the volume's
	SetPolicy bool        // if the volume has another policy: make the first of Policies the volume's, once all mounts that live enforce it
	Record    RecordStore // the lock service's record for Namespace and Name

	// OtherFlock is the digest of the first policy with the other --flock than Flock, for a clear
	// error.
	Flock      policy.Flock
	OtherFlock string

	// Alone: no other machine writes to Source, and an embedded service has a flock on it
	// that no second one can have. So it may replace one whose state was lost.
	Alone bool
}

// markerAttempts bounds the tries while other, refused mounts create and remove the marker.
const markerAttempts = 5

// Check makes sure that SOURCE, its marker, the lock service, its record and cfg
// mean one volume, creates what a first mount has to, and returns the
// volume's id.
//
// Errors: ErrName; *FormatError for a volume of an older format; *MismatchError when they mean different ones; *ServiceError when
// the volume has its locks in another service; *NamesError when Source takes several names for one; *PolicyError
// when the volume has another policy; *InvalidError for a marker or a record that cannot be read; the file system's, the
// record store's. A marker that Check created is removed again when the record turns out to
// be another volume's; after any other error it stays, and the next mount
// goes on from it.
func Check(ctx context.Context, cfg Config) (uuid.UUID, error) {
	if err := errors.Join(ValidateName("namespace", cfg.Namespace), ValidateName("name", cfg.Name)); err != nil {
		return uuid.Nil, err
	}
	service, err := cfg.Record.Service(ctx)
	if err != nil {
		return uuid.Nil, err
	}
	marker, created, err := openMarker(cfg, service)
	if err == nil && marker.Format < format {
		err = &FormatError{Source: cfg.Source, Format: marker.Format, Service: service}
	}
	if err == nil {
		marker, err = settleService(cfg, marker, service)
	}
	if err != nil {
		return uuid.Nil, err
	}
	var record identity
	var stored []byte
	if err = checkNames(cfg.Source, marker); err == nil {
		record, stored, err = openRecord(ctx, cfg.Record, marker, cfg.admits(marker))
	}
	if err == nil && !record.sameVolume(marker) {
		err = disagree(cfg, marker, record, created)
	}
	if err != nil && created && (errors.As(err, new(*MismatchError)) || errors.As(err, new(*InvalidError)) || errors.As(err, new(*NamesError))) {
		if undo := removeMarker(cfg.Source, marker); undo != nil {
			err = fmt.Errorf("%w (and the marker just created could not be removed: %w)", err, undo)
		}
	}
	if err != nil {
		return uuid.Nil, err
	}
	if record, stored, err = settleMove(ctx, cfg, marker, record, stored); err != nil {
		return uuid.Nil, err
	}
	return marker.ID, settlePolicy(ctx, cfg, marker, record, stored)
}

// openRecord returns the record, parsed and as stored. It stores the marker's if there is none.
func openRecord(ctx context.Context, store RecordStore, marker identity, admits func([]byte) bool) (record identity, stored []byte, err error) {
	if stored, err = store.VolumeRecord(ctx, marker.encode(), admits); err != nil {
		return identity{}, nil, fmt.Errorf("the volume's record: %w", err)
	}
	record, err = decode("the record of volume "+marker.Namespace+"/"+marker.Name+" in the lock service", stored)
	return record, stored, err
}

// openMarker returns SOURCE's marker, which agrees with cfg, and whether it was created.
func openMarker(cfg Config, service lockmgr.Service) (marker identity, created bool, err error) {
	for range markerAttempts {
		marker, err = readMarker(cfg.Source)
		if err == nil {
			return marker, false, asked(cfg, marker)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return identity{}, false, err
		}
		marker = identity{Format: format, ID: uuid.New(), Namespace: cfg.Namespace, Name: cfg.Name, Policy: cfg.Policies[0], Service: service}
		err = createMarker(cfg.Source, marker)
		if err == nil {
			return marker, true, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return identity{}, false, err
		}
	}
	return identity{}, false, err
}

func asked(cfg Config, marker identity) error {
	e := &MismatchError{Source: cfg.Source, Volume: cfg.Namespace + "/" + cfg.Name}
	switch {
	case marker.Namespace != cfg.Namespace:
		e.Field, e.Marker, e.Asked = "namespace", marker.Namespace, cfg.Namespace
	case marker.Name != cfg.Name:
		e.Field, e.Marker, e.Asked = "name", marker.Name, cfg.Name
	default:
		return nil
	}
	return e
}

// disagree returns the first difference between the marker and the record. A new marker has
// none: SOURCE had no identity before.
func disagree(cfg Config, marker, record identity, created bool) error {
	e := &MismatchError{Source: cfg.Source, Volume: cfg.Namespace + "/" + cfg.Name}
	switch {
	case marker.ID != record.ID:
		e.Field, e.Marker, e.Record = "volume id", marker.ID.String(), record.ID.String()
	case marker.Namespace != record.Namespace:
		e.Field, e.Marker, e.Record = "namespace", marker.Namespace, record.Namespace
	default:
		e.Field, e.Marker, e.Record = "name", marker.Name, record.Name
	}
	if created {
		e.Marker = ""
	}
	return e
}
