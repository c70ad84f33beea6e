package kubelease

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strings"

	"github.com/lockfs/lockfs/lockmgr"
)

// The names of the Leases' labels and annotations.
const (
	domain = "lockfs.io/"

	labelVolume  = domain + "volume"  // the hash of the volume's namespace and name
	labelKind    = domain + "kind"    // one of the kinds
	labelSession = domain + "session" // of a session, its id; of a lock, that of its first entry
	labelRecalls = domain + "recalls" // of a lock that somebody recalls: see recallsOf
	labelPulses  = domain + "pulses"  // of a pulse, in the place of labelVolume: the hash of the volume's namespace and name

	noteVolume  = domain + "volume-name" // <namespace>/<name>, for people
	noteKey     = domain + "key"         // of a lock: the path, escaped
	noteEntries = domain + "entries"     // of a lock: JSON, in order of arrival
	noteRecalls = domain + "recalls"     // of a lock: JSON, the recalls of requests that are not in line
	noteRows    = domain + "rows"        // of a table of advisory locks: JSON
	noteWrite   = domain + "write"       // of a table: unique to the write
	noteFence   = domain + "fence"       // of a lock: see layout.fence

	noteUndelegated = domain + "undelegated" // of the directories' Lease: see object.undelegates
	noteInfo        = domain + "info"        // of a session: JSON, lockmgr.SessionInfo
	noteRecord      = domain + "record"      // of the volume
	notePending     = domain + "pending"     // of the volume: see Backend.ReplaceVolumeRecord
	noteBreak       = domain + "break"       // of a break that was not withdrawn: JSON, lockmgr.Break
)

// The kinds of Leases.
const (
	kindFile    = "file"
	kindInode   = "inode"
	kindTree    = "tree"     // one, of all directory entries
	kindTable   = "advisory" // the flock and fcntl locks of a file
	kindSession = "session"
	kindPulse   = "pulse"
	kindVolume  = "volume"
	kindService = "service" // holds nothing: its UID is the service's id
	kindBreak   = "break"
	kindJanitor = "janitor" // the elected janitor; without labelVolume, so that no mirror has it
)

// layout names the Leases of one volume.
type layout struct {
	volume string // <namespace>/<name>
	hash   string
}

func newLayout(namespace, name string) layout {
	volume := namespace + "/" + name // a namespace has no slash
	return layout{volume: volume, hash: hash(volume)[:16]}
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func (l layout) prefix() string             { return "lockfs-" + l.hash + "-" }
func (l layout) selector() string           { return labelVolume + "=" + l.hash }
func (l layout) recalls() string            { return l.selector() + "," + labelRecalls }
func (l layout) pulses() string             { return labelPulses + "=" + l.hash }
func (l layout) tree() string               { return l.prefix() + kindTree }
func (l layout) record() string             { return l.prefix() + kindVolume }
func (l layout) service() string            { return l.prefix() + kindService }
func (l layout) janitor() string            { return l.prefix() + "janitor" }
func (l layout) session(id string) string   { return l.prefix() + kindSession + "-" + id }
func (l layout) pulse(id string) string     { return l.prefix() + kindPulse + "-" + id }
func (l layout) breakName(id string) string { return l.prefix() + kindBreak + "-" + id }

// advisory selects the tables of advisory locks, and the sessions.
func (l layout) advisory() string {
	return l.selector() + "," + labelKind + " in (" + kindTable + "," + kindSession + ")"
}

// table is the name of the Lease of a table of advisory locks.
func (l layout) table(k lockmgr.Key) string {
	return l.prefix() + kindTable + "-" + hash(k.Path)[:40]
}

// lock is the name of the Lease in which k's entries are. A path is longer than
// a name may be, and bytes: the name has its hash, an annotation the path.
func (l layout) lock(k lockmgr.Key) string {
	switch k.Kind {
	case lockmgr.Tree:
		return l.tree()
	case lockmgr.Inode:
		return l.prefix() + kindInode + "-" + hash(k.Path)[:40]
	}
	return l.prefix() + kindFile + "-" + hash(k.Path)[:40]
}

// escape makes a path readable text: annotations are UTF-8.
func escape(path string) string {
	return strings.ReplaceAll(url.PathEscape(path), "%2F", "/")
}

// keyOf is the reverse of escape. It fails for a path that is no key of the kind.
func keyOf(kind, escaped string) (lockmgr.Key, error) {
	path, err := url.PathUnescape(escaped)
	if err != nil {
		return lockmgr.Key{}, fmt.Errorf("%w: %w", lockmgr.ErrInvalidKey, err)
	}
	switch kind {
	case kindTree:
		return lockmgr.TreeKey(path)
	case kindInode, kindTable:
		k, err := lockmgr.FileKey(path)
		k.Kind = lockmgr.Inode
		return k, err
	}
	return lockmgr.FileKey(path)
}
