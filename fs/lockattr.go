package fs

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Programs can read who has a file open for write, by any view, and the fencing token of the
// lock, for a service that refuses older tokens. The attributes are not stored and not listed,
// so that copies do not have them.
const (
	lockAttrs = "user.lockfs."
	tokenAttr = lockAttrs + "token" // decimal
	ownerAttr = lockAttrs + "owner" // JSON: a lockmgr.Holder
)

func isLockAttr(attr string) bool { return strings.HasPrefix(attr, lockAttrs) }

// lockAttr returns the value of a lock attribute; ENODATA if nobody has the
// file open for write.
func (f *FS) lockAttr(ctx context.Context, n *node, attr string) ([]byte, error) {
	if attr != tokenAttr && attr != ownerAttr {
		return nil, unix.ENODATA
	}
	path, err := f.nodes.path(n)
	if err != nil {
		return nil, unix.ENODATA // it has no name, and so no lock
	}
	key, err := lockmgr.FileKey(path)
	if err != nil {
		return nil, unix.ENODATA
	}
	e, held, err := f.locks.Exclusive(ctx, key)
	switch {
	case err != nil:
		return nil, err
	case !held:
		return nil, unix.ENODATA
	case attr == tokenAttr:
		return strconv.AppendInt(nil, e.FencingToken(), 10), nil
	}
	return json.Marshal(e.Holder)
}

func attrReply(value, dest []byte) (uint32, error) {
	if len(dest) > 0 && len(dest) < len(value) { // without room the size is asked for
		return 0, unix.ERANGE
	}
	copy(dest, value)
	return uint32(len(value)), nil
}
