package fs

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Programs can read the owner and fencing token of a file open for write in any view, for services
// that refuse older tokens. The attributes are neither stored nor listed, so copies do not have
// them.
const (
	lockAttrs = "user.lockfs."
	tokenAttr = lockAttrs + "token" // decimal
	ownerAttr = lockAttrs + "owner" // JSON: a lockmgr.Holder
)

func isLockAttr(attr string) bool { return strings.HasPrefix(attr, lockAttrs) }

// lockAttr returns the value of a lock attribute. ENODATA: nobody has the file open for write.
func (f *locker) lockAttr(ctx context.Context, n *node, attr string) ([]byte, error) {
	if attr != tokenAttr && attr != ownerAttr {
		return nil, unix.ENODATA
	}
	key, err := f.lockKey(n)
	if err != nil {
		return nil, err
	}
	if attr == tokenAttr {
		token, held, err := f.fencingToken(ctx, n, key)
		if err != nil || !held {
			return nil, cmp.Or(err, error(unix.ENODATA))
		}
		return strconv.AppendInt(nil, token, 10), nil
	}
	e, held, err := f.locks.Exclusive(ctx, key)
	if err != nil || !held {
		return nil, cmp.Or(err, error(unix.ENODATA))
	}
	return json.Marshal(e.Holder)
}

// fencingToken asks the holds of handles of this mount that have the file open. Only if there are
// none does it ask for the key: another file may get that key at any moment.
func (f *locker) fencingToken(ctx context.Context, n *node, key lockmgr.Key) (token int64, held bool, err error) {
	here := false
	for _, h := range n.allHolds() {
		if h.Unlocked() || h.Lost() {
			continue
		}
		here = true
		if token, held, err = h.FencingToken(ctx, key.Kind); held || err != nil {
			return token, held, err
		}
	}
	if here { // the file has lost its name since
		return 0, false, nil
	}
	return f.locks.FencingToken(ctx, key)
}

// lockKey returns what a writer of the file locks: the inode, or the only name. ENODATA: no name.
func (f *files) lockKey(n *node) (lockmgr.Key, error) {
	var st unix.Stat_t
	if err := f.with(n, func(fd int) error { return byDescriptor(fstat(fd, &st)) }); err != nil {
		return lockmgr.Key{}, err
	}
	if st.Nlink == 0 {
		return lockmgr.Key{}, unix.ENODATA // another file may have its name by now
	}
	named := f.nodes.nameOf(n)
	if !hasMoreNames(&st) {
		if d, ok := f.trueName(n); ok {
			named = d // another mount may have removed the other
		}
	}
	if named.dir == nil {
		return lockmgr.Key{}, unix.ENODATA
	}
	path, err := f.nodes.pathIn(named.dir, named.name)
	if err != nil {
		return lockmgr.Key{}, unix.ENODATA
	}
	if hasMoreNames(&st) {
		return f.backing.inodeKey(path, &st)
	}
	key, err := lockmgr.FileKey(path)
	if err != nil {
		return key, unix.ENODATA
	}
	return key, nil
}

func attrReply(value, dest []byte) (uint32, error) {
	if len(dest) > 0 && len(dest) < len(value) { // without room, the size is asked for
		return 0, unix.ERANGE
	}
	copy(dest, value)
	return uint32(len(value)), nil
}
