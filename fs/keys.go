package fs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// InodeKey returns the key of path's advisory locks in the views of source. Not ok: no such file.
func InodeKey(source, path string) (key lockmgr.Key, ok bool, err error) {
	b, err := openBacking(source)
	if err != nil {
		return key, false, err
	}
	defer unix.Close(b.root)
	fd, st, err := b.resolve(path, anew)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return key, false, nil
	}
	if err != nil {
		return key, false, fmt.Errorf("%s in %s: %w", path, source, err)
	}
	unix.Close(fd)
	key, err = b.inodeKey(path, &st.Stat_t)
	return key, err == nil, err
}

// Keys returns what an open of path for write locks in the views of source: the path, which need
// not exist, and the inode if it has several names. Errors: lockmgr.ErrInvalidKey, the file
// system's.
func Keys(source, path string) ([]lockmgr.Key, error) {
	key, err := lockmgr.FileKey(path)
	if err != nil {
		return nil, err
	}
	keys := []lockmgr.Key{key}
	b, err := openBacking(source)
	if err != nil {
		return nil, err
	}
	defer unix.Close(b.root)
	fd, st, err := b.resolve(path, anew)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return keys, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", path, source, err)
	}
	unix.Close(fd)
	if !hasMoreNames(&st.Stat_t) {
		return keys, nil
	}
	inode, err := b.inodeKey(path, &st.Stat_t)
	return append(keys, inode), err
}
