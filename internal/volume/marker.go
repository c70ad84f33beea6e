package volume

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// MarkerName is the marker's name in SOURCE's root. The view hides it.
const MarkerName = ".lockfs-volume"

// maxMarker bounds what is read of a file that has the marker's name, in bytes.
const maxMarker = 64 << 10

// IsMarker reports whether an entry of SOURCE's root is the marker, or one
// that was being created when its process was killed.
func IsMarker(name string) bool {
	return name == MarkerName || strings.HasPrefix(name, MarkerName+".")
}

// readMarker returns the identity in source's marker. Errors: fs.ErrNotExist,
// *InvalidError, or the file system's.
func readMarker(source string) (identity, error) { return readNamed(source, MarkerName) }

// Verify makes sure that dir's marker is of volume id, and so that no mount is missing.
func Verify(dir string, id uuid.UUID) error {
	marker, err := readMarker(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("it is not mounted: the directory has no marker %s", MarkerName)
	case err != nil:
		return err
	case marker.ID != id:
		return fmt.Errorf("it is another volume, %s/%s, or a copy of this one", marker.Namespace, marker.Name)
	}
	return nil
}

func readNamed(source, name string) (identity, error) {
	path := filepath.Join(source, name)
	// Not through a symbolic link, and without waiting for the other end of a FIFO.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ELOOP) {
		return identity{}, &InvalidError{Where: path, Err: errors.New("it is a symbolic link")}
	}
	if err != nil {
		return identity{}, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return identity{}, err
	}
	if !fi.Mode().IsRegular() {
		return identity{}, &InvalidError{Where: path, Err: errors.New("it is not a regular file")}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxMarker))
	if err != nil {
		return identity{}, err
	}
	return decode(path, b)
}

// createMarker writes id's marker, complete and on disk or not at all. Errors: fs.ErrExist for
// another.
func createMarker(source string, id identity) error {
	tmp, err := writeMarker(source, id)
	if err != nil {
		return fmt.Errorf("create the volume's marker: %w%s", err, advice(err))
	}
	err = renameNoReplace(tmp, filepath.Join(source, MarkerName))
	if err != nil {
		_ = os.Remove(tmp)
	}
	if errors.Is(err, fs.ErrExist) {
		// Over NFS a reply that was lost makes our own success look like this.
		if have, readErr := readMarker(source); readErr == nil && have == id {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("create the volume's marker: %w", err)
	}
	return syncDir(source)
}

// replaceMarker writes id's marker over the one that is there.
func replaceMarker(source string, id identity) error {
	tmp, err := writeMarker(source, id)
	if err == nil {
		if err = os.Rename(tmp, filepath.Join(source, MarkerName)); err != nil {
			_ = os.Remove(tmp)
		}
	}
	if err != nil {
		return fmt.Errorf("note the policy in the volume's marker: %w", err)
	}
	return syncDir(source)
}

// writeMarker writes id's marker under a temporary name.
func writeMarker(source string, id identity) (tmp string, err error) {
	tmp = filepath.Join(source, MarkerName+"."+uuid.NewString())
	if err = writeSynced(tmp, id.encode()); err != nil {
		_ = os.Remove(tmp)
	}
	return tmp, err
}

func advice(err error) string {
	switch {
	case errors.Is(err, unix.EROFS):
		return "; SOURCE is read-only and was never mounted by lockfs: mount it once where it can be written"
	case errors.Is(err, fs.ErrPermission):
		return "; the first mount of a volume writes this file: run it as a user who may"
	default:
		return ""
	}
}

func writeSynced(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// renameNoReplace renames from to to unless to exists (fs.ErrExist).
func renameNoReplace(from, to string) error {
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSYS):
		return linkNoReplace(from, to)
	default:
		return &os.LinkError{Op: "rename", Old: from, New: to, Err: err}
	}
}

// linkNoReplace is for file systems without flags of rename, such as NFS.
func linkNoReplace(from, to string) error {
	if err := os.Link(from, to); err != nil {
		return err
	}
	return os.Remove(from)
}

// removeMarker takes back the marker that createMarker made for id.
func removeMarker(source string, id identity) error {
	have, err := readMarker(source)
	if err != nil {
		return err
	}
	if have.ID != id.ID {
		return nil // another mount's
	}
	if err := os.Remove(filepath.Join(source, MarkerName)); err != nil {
		return err
	}
	return syncDir(source)
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	// Some network file systems cannot sync a directory, and need not.
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}
