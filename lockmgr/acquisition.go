package lockmgr

import (
	"log/slog"

	"github.com/google/uuid"
)

// AcquisitionID is the UUID of one acquisition, and part of the name of each of its entries in the
// service. 'lockfs ls' prints it as LOCK, and the log as lock=.
type AcquisitionID uuid.UUID

// NewAcquisitionID returns a fresh id.
func NewAcquisitionID() AcquisitionID { return AcquisitionID(uuid.New()) }

// ParseAcquisitionID reads what String writes, and other spellings of a UUID.
func ParseAcquisitionID(text string) (AcquisitionID, error) {
	id, err := uuid.Parse(text)
	return AcquisitionID(id), err
}

func (id AcquisitionID) String() string { return uuid.UUID(id).String() }

// Short is the beginning of the id, which is enough for people.
func (id AcquisitionID) Short() string { return id.String()[:8] }

// IsZero reports whether id is the zero value.
func (id AcquisitionID) IsZero() bool { return id == AcquisitionID{} }

// MarshalText implements encoding.TextMarshaler.
func (id AcquisitionID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *AcquisitionID) UnmarshalText(text []byte) error {
	return (*uuid.UUID)(id).UnmarshalText(text)
}

// LogID is the attribute of every log line about a lock, from the request to the release.
func LogID(id AcquisitionID) slog.Attr { return slog.String("lock", id.Short()) }
