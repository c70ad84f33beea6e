// Package volume makes sure that every mount of a volume means the same one.
//
// Two mounts exclude each other only if they use the same keys in the same
// lock service. A node that spells the volume's name differently, mounts
// another directory under its name, or talks to another lock service would
// exclude nobody, and nothing would show it. So the volume has an identity
// that stands in two places, and a mount is refused unless both agree with
// what it was asked for:
//
//	SOURCE/.lockfs-volume            the marker  ┐ format, volume id,
//	/lockfs/<ns>/<name>/volume       the record  ┘ namespace, name, policy
//
//	marker  record
//	no      no      first mount: the marker is created, then the record
//	yes     no      the lock service is new or was wiped: the record is put again
//	no      yes     refused: this is not the directory that has the name, or it was restored without its marker
//	yes     yes     they agree, or the mount is refused
//
// Two first mounts may race, on one node or two: creating the marker is
// exclusive on the file system, creating the record in the lock service.
// Whoever loses finds the other's and compares.
//
// # Policy
//
// The identity holds the digest of the volume's policy, which every mount has
// to bring along. That of the record counts; the marker's follows it. Only the
// policy ever changes, and only while no mount of the volume lives: the record
// store compares and replaces in one transaction, and opens no session any more
// for a mount that has seen the record before.
//
// # Not detected
//
// A mount that uses another lock service in which the name is free puts the
// record there and is content. Who can write SOURCE's root can replace the marker.
package volume
