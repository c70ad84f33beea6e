package volume

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/policy"
)

// format is the version of the identity and of the layout of the volume's keys.
// It changes whenever an older lockfs must not touch the volume any more:
//
//	1  the first
//	2  the identity names the lock service
//	3  a fencing token is an entry's number and the turn of its owner
//	4  in etcd, directories are compared and leave stamps; there is no epoch
//	5  an entry names its acquisition "lock"
const format = 5

// identity is what the marker and the record hold.
type identity struct {
	Format    int       `json:"format"`
	ID        uuid.UUID `json:"id"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Policy    string    `json:"policy,omitempty"` // its digest; empty of a volume made before there were policies

	// Service has the volume's locks; format 1 does not say. A record that names
	// another than the one it is in stands for a volume that has moved there.
	Service lockmgr.Service `json:"service,omitzero"`
	Moves   int             `json:"moves"` // how often it has moved from one service to another
}

// sameVolume: a volume's policy and lock service can change.
func (id identity) sameVolume(other identity) bool {
	return id.ID == other.ID && id.Namespace == other.Namespace && id.Name == other.Name
}

func (id identity) encode() []byte {
	b, err := json.Marshal(id)
	if err != nil {
		panic(err) // an int, a UUID and two strings
	}
	return append(b, '\n')
}

// decode reads an identity; where names its place in the error, always an *InvalidError.
func decode(where string, b []byte) (identity, error) {
	// The format first: of a newer one nothing else may be understood.
	var head struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &head); err != nil {
		return identity{}, &InvalidError{Where: where, Err: err}
	}
	if head.Format > format {
		return identity{}, &InvalidError{Where: where, Err: fmt.Errorf("format %d: %w", head.Format, ErrNewer)}
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return identity{}, &InvalidError{Where: where, Err: err}
	}
	if id.Policy == "" {
		id.Policy = (*policy.Policy)(nil).Digest(policy.FlockLocal)
	}
	switch {
	case id.Format < 1:
		return identity{}, &InvalidError{Where: where, Err: errors.New("it has no format version")}
	case id.ID == uuid.Nil:
		return identity{}, &InvalidError{Where: where, Err: errors.New("it has no volume id")}
	}
	return id, nil
}
