package lockmgr

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
)

// The kinds of lock services.
const (
	KindEtcd       = "etcd"
	KindEmbedded   = "embedded" // an etcd that lockfs runs for one machine
	KindKubernetes = "kubernetes"
)

// Service is a lock service. Two mounts exclude each other only if they use the same one.
type Service struct {
	Kind string    `json:"kind"`
	ID   uuid.UUID `json:"id"`           // stored in the service itself
	At   string    `json:"at,omitempty"` // how it was reached, for people
}

// Is reports whether two services are one, however they were reached.
func (s Service) Is(other Service) bool { return s.ID == other.ID }

// String is KIND/ID@AT, which ParseService reads.
func (s Service) String() string {
	if s.ID == uuid.Nil {
		return "unknown"
	}
	text := s.Kind + "/" + s.ID.String()
	if s.At != "" {
		text += "@" + s.At
	}
	return text
}

// ParseService reads KIND/ID or KIND/ID@AT.
func ParseService(text string) (Service, error) {
	kind, rest, _ := strings.Cut(text, "/")
	id, at, _ := strings.Cut(rest, "@")
	parsed, err := uuid.Parse(id)
	if err != nil {
		err = fmt.Errorf("%q is no UUID", id)
	}
	if !slices.Contains([]string{KindEtcd, KindEmbedded, KindKubernetes}, kind) {
		err = errors.New("unknown kind")
	}
	if err != nil {
		return Service{}, fmt.Errorf("%q is not a lock service: want KIND/ID, as in the message that refused the mount: %w", text, err)
	}
	return Service{Kind: kind, ID: parsed, At: at}, nil
}
