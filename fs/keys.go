package fs

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/lockmgr"
)

// Keys returns what an open for write of path locks in the views of the directory
// source: the path, which need not exist, and the inode, if the file there has
// several names. Errors: lockmgr.ErrInvalidKey, the file system's.
func Keys(source, path string) ([]lockmgr.Key, error) {
	key, err := lockmgr.FileKey(path)
	if err != nil {
		return nil, err
	}
	keys := []lockmgr.Key{key}
	root, err := unix.Open(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", source, err)
	}
	defer unix.Close(root)
	var volume unix.Stat_t
	if err := unix.Fstat(root, &volume); err != nil {
		return nil, fmt.Errorf("stat %s: %w", source, err)
	}
	fd, st, err := resolve(root, path)
	if err == unix.ENOENT || err == unix.ENOTDIR {
		return keys, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s in %s: %w", path, source, err)
	}
	unix.Close(fd)
	if !hasMoreNames(&st) {
		return keys, nil
	}
	inode, err := inodeKey(root, volume.Dev, path, &st)
	return append(keys, inode), err
}
