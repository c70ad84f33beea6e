package embedetcd

import (
	"crypto/sha256"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// envStateDir overrides StateDir.
const envStateDir = "LOCKFS_STATE_DIR"

// maxSocketPath is the longest path of a unix socket: sun_path has 108 bytes with the NUL.
const maxSocketPath = 107

// Files of a state directory. The socket's name is short for maxSocketPath.
func lockPath(dir string) string   { return filepath.Join(dir, "lock") }
func dataPath(dir string) string   { return filepath.Join(dir, "etcd") }
func socketPath(dir string) string { return filepath.Join(dir, "client.sock") }

// StateDir returns $LOCKFS_STATE_DIR, else /var/lib/lockfs for root and $XDG_STATE_HOME/lockfs or
// ~/.local/state/lockfs for others. Errors: ErrStateDir without a home, or for a relative path.
func StateDir() (string, error) {
	if dir := os.Getenv(envStateDir); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("%w: %s=%q is not an absolute path", ErrStateDir, envStateDir, dir)
		}
		return filepath.Clean(dir), nil
	}
	if os.Geteuid() == 0 {
		return "/var/lib/lockfs", nil
	}
	// The XDG specification has relative paths ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "lockfs"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("%w: %w; set %s", ErrStateDir, err, envStateDir)
	}
	return filepath.Join(home, ".local", "state", "lockfs"), nil
}

// DirFor returns the state directory of source, below stateDir. Its name has source's device and
// inode, so that bind mounts and symbolic links of one directory meet.
//
// Inode numbers are reused: a digest of the file handle, where that lasts as long as the inode,
// tells a new directory from a removed one. Elsewhere (such as overlay) the mount is refused,
// because the volume's record and marker disagree.
//
// Device numbers may change at a reboot. Then the lock service is empty, the volume's record comes
// back from its marker, and fencing tokens count from one again.
func DirFor(stateDir, source string) (string, error) {
	fi, err := os.Stat(source)
	if err != nil {
		return "", err
	}
	st := fi.Sys().(*syscall.Stat_t)
	name := fmt.Sprintf("%d:%d-%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	if id := lifelongHandle(source); id != nil {
		sum := sha256.Sum256(id)
		name += fmt.Sprintf("-%x", sum[:4])
	}
	return filepath.Join(stateDir, "embedded", name), nil
}

// lifelongHandle returns source's file handle if it is always the same and never reused, else nil.
// fuse makes it of a node id that changes when the kernel forgets the inode: two mounts would not
// exclude each other.
func lifelongHandle(source string) []byte {
	var fs unix.Statfs_t
	if err := unix.Statfs(source, &fs); err != nil {
		return nil
	}
	switch fs.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.F2FS_SUPER_MAGIC:
	default:
		return nil
	}
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, source, unix.AT_SYMLINK_FOLLOW)
	if err != nil {
		return nil
	}
	return h.Bytes()
}

// prepareDir creates dir and makes it ours alone.
func prepareDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%w: %q is not an absolute path", ErrStateDir, dir)
	}
	sock := socketPath(dir)
	if len(sock) > maxSocketPath {
		return fmt.Errorf("%w: the path of its socket, %s, has %d bytes and a unix socket's may have %d; set %s to a shorter path",
			ErrStateDir, sock, len(sock), maxSocketPath, envStateDir)
	}
	// Clients name the socket by a URL.
	if (&url.URL{Path: sock}).EscapedPath() != sock {
		return fmt.Errorf("%w: %q has characters that a URL cannot hold; set %s to a plain path", ErrStateDir, dir, envStateDir)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w; set %s to a directory you can write to", ErrStateDir, err, envStateDir)
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStateDir, err)
	}
	if uid := fi.Sys().(*syscall.Stat_t).Uid; !fi.IsDir() || int(uid) != os.Geteuid() {
		return fmt.Errorf("%w: %s is not a directory of user %d; remove it or set %s", ErrStateDir, dir, os.Geteuid(), envStateDir)
	}
	// Others must not reach the socket, even before its mode is set.
	if err := os.Chmod(dir, 0o700); err != nil {
		return fmt.Errorf("%w: %w", ErrStateDir, err)
	}
	return nil
}
