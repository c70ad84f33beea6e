package lockmgr

import (
	"log/slog"

	"github.com/google/uuid"
)

// AcquisitionID names one acquisition: the entries that one AcquireRequest puts, and what
// becomes of them. An owner that acquires again has another one. People know a lock by it:
// 'lockfs ls' prints it as LOCK, and the log has it as lock=. It is the owner's UUID in an entry.
type AcquisitionID uuid.UUID

// NewAcquisitionID returns one that was never used.
func NewAcquisitionID() AcquisitionID { return AcquisitionID(uuid.New()) }

// ParseAcquisitionID reads what String writes, and other spellings of a UUID.
func ParseAcquisitionID(text string) (AcquisitionID, error) {
	id, err := uuid.Parse(text)
	return AcquisitionID(id), err
}

func (id AcquisitionID) String() string { return uuid.UUID(id).String() }

// Short is its beginning, which is enough for people.
func (id AcquisitionID) Short() string { return id.String()[:8] }

// IsZero reports whether it names nothing.
func (id AcquisitionID) IsZero() bool { return id == AcquisitionID{} }

// MarshalText is encoding.TextMarshaler's.
func (id AcquisitionID) MarshalText() ([]byte, error) { return uuid.UUID(id).MarshalText() }

// UnmarshalText is encoding.TextUnmarshaler's.
func (id *AcquisitionID) UnmarshalText(text []byte) error {
	return (*uuid.UUID)(id).UnmarshalText(text)
}

// LogID names a lock in every line of the log that is about it, from the request
// to the release.
func LogID(id AcquisitionID) slog.Attr { return slog.String("lock", id.Short()) }
