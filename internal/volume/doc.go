// Package volume makes sure that every mount of a volume means the same one.
//
// Two mounts exclude each other only if they use the same keys in the same
// lock service. A node that spells the volume's name differently, mounts
// another directory under its name, or talks to another lock service would
// exclude nobody, and nothing would show it. So the volume has an identity
// that stands in two places, and a mount is refused unless both agree with
// what it was asked for:
//
//	SOURCE/.lockfs-volume            the marker  ┐ format, volume id, namespace, name,
//	/lockfs/<ns>/<name>/volume       the record  ┘ policy, lock service, number of moves
//	/lockfs/<ns>/<name>/service      the id of the lock service, kept in it
//
//	marker              record
//	no                  no      first mount: the marker is created, then the record
//	names this service  no      the record was lost, or not put yet: it is put
//	names another       any     refused, with both services
//	no                  yes     refused: this is not the directory that has the name, or it was restored without its marker
//	names this service  yes     they agree, or the mount is refused
//
// Two first mounts may race, on one node or two, with one lock service or two: creating
// the marker is exclusive on the file system, creating the record in the lock service.
// Whoever loses finds the other's and compares.
//
// # Lock service
//
// A service is known by an id that is kept in it: a random one in etcd, the UID of a
// Lease in an API server. A snapshot that is restored has it still; an empty one has
// another, for nothing tells whether it took the former's place or stands beside it. The state of an
// embedded etcd may be lost: the flock on SOURCE says that there is no other on this machine.
//
// Move names another service, while no mount of the volume lives: the record in the
// former one says so first. A record that names another service than the one it is in
// lets nobody in, and the marker follows it. Moves are numbered, so that an old marker
// or record is none to go by.
//
// # Policy
//
// The identity holds the digest of the volume's policy and --flock. Every mount that lives enforces that
// policy, alone or with another one. That of the record counts; the marker's follows it. It changes only
// while no mount of the volume lives that does not enforce the next one: the record store
// compares and replaces in one step, and opens no session any more for a mount that
// knows the former record and does not enforce the next policy.
//
// # Not detected
//
// An etcd that runs beside a copy of its data: both have the id. Who can write SOURCE's
// root can replace the marker.
package volume
