package csi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// records is a directory beside the claims' directories, with one file for each claim. A directory
// without a record was not made here, and is never removed.
const records = ".lockfs-claims"

// removed is added to the name of a directory whose removal has begun.
const removed = ".removed"

// record is what was asked for when a claim's directory was made.
type record struct {
	Name     string `json:"name"`
	Capacity int64  `json:"capacity"` // bytes; 0: none was asked for
	// Quota says whether the capacity is a quota of the directory.
	Quota quotaMode `json:"quota,omitempty"`
}

// quotaMode is what a StorageClass asks for.
type quotaMode string

const (
	quotaAuto     quotaMode = "" // if the volume has quotas
	quotaRequired quotaMode = "required"
	quotaNone     quotaMode = "none"
)

var quotaModes = map[string]quotaMode{"auto": quotaAuto, "required": quotaRequired, "none": quotaNone}

// quotaBytes is the quota of a directory on CephFS. A view lets those set it who have
// CAP_LINUX_IMMUTABLE.
const quotaBytes = "ceph.quota.max_bytes"

// limit makes the capacity the quota of a claim's directory, and reports whether it has one now.
func (r record) limit(dir *os.File) (limited bool, err error) {
	if r.Quota == quotaNone || r.Capacity == 0 {
		return false, nil
	}
	err = unix.Fsetxattr(int(dir.Fd()), quotaBytes, strconv.AppendInt(nil, r.Capacity, 10), 0)
	switch {
	case err == unix.EOPNOTSUPP && r.Quota == quotaAuto:
		return false, nil
	case err == unix.EOPNOTSUPP:
		return false, status.Error(codes.FailedPrecondition, "the StorageClass requires quotas, and the volume has none: only CephFS has them")
	case err == unix.EPERM, err == unix.EACCES:
		return false, status.Errorf(codes.FailedPrecondition, "the volume does not let the driver set a quota (%v): the driver needs CAP_LINUX_IMMUTABLE, and the daemon's client of CephFS the flag p of its MDS capability; a StorageClass with the parameter quota: none needs neither", err)
	case err != nil:
		return false, fmt.Errorf("set the quota of %s: %w", dir.Name(), err)
	}
	return true, nil
}

// leafAndRecord are the names of a claim's directory and of its record in the directory that has both.
func (s share) leafAndRecord() (leaf, file string) {
	leaf = path.Base(s.dir)
	return leaf, path.Join(records, leaf)
}

// create makes the record first: a directory without one would never be removed. While the record is
// open for write the view's own lock keeps other controllers out.
//
// The directory gets its mode last: nobody writes in it before it has its quota.
func create(root *os.Root, c claim) (limited bool, err error) {
	leaf, file := c.leafAndRecord()
	if err := root.Mkdir(records, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return false, err
	}
	f, err := openPlain(root, file, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		return false, err
	}
	defer f.Close()
	// Kubernetes need not ask again for a claim that is refused, nor for its removal.
	forget := func(refusal error) error {
		f.Close() // in the scope "handle" it would keep its own name
		if err := root.Remove(file); err != nil {
			return errors.Join(refusal, err)
		}
		return refusal
	}
	was, err := read(f)
	switch {
	case err != nil:
		return false, err
	case was == nil:
		if err = write(f, c.record); err == nil {
			err = root.Mkdir(leaf, 0o700)
		}
		if errors.Is(err, os.ErrExist) && isEmpty(root, leaf) {
			err = nil // perhaps the volume has asked twice
		} else if errors.Is(err, os.ErrExist) {
			err = status.Errorf(codes.FailedPrecondition, "%s is there already, and was not made for a claim", c.id())
		}
		if err != nil {
			return false, forget(err)
		}
	case *was != c.record:
		return false, status.Errorf(codes.AlreadyExists, "%s was made for %q with a capacity of %d bytes and the quota %q", c.id(), was.Name, was.Capacity, was.Quota)
	default:
		if err := root.Mkdir(leaf, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
			return false, err
		}
	}
	dir, err := openPlain(root, leaf, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false, err
	}
	defer dir.Close()
	if limited, err = c.limit(dir); err != nil {
		if root.Remove(leaf) == nil {
			err = forget(err)
		}
		return false, err
	}
	return limited, dir.Chmod(c.mode)
}

// openPlain is openBeneath for a root.
func openPlain(root *os.Root, name string, flags, mode uint64) (*os.File, error) {
	above, err := root.Open(".")
	if err != nil {
		return nil, err
	}
	defer above.Close()
	return openBeneath(above, name, flags, mode)
}

func isEmpty(root *os.Root, leaf string) bool {
	dir, err := openPlain(root, leaf, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return false
	}
	defer dir.Close()
	_, err = dir.Readdirnames(1)
	return err == io.EOF
}

const maxRecord = 64 << 10 // bytes

// read returns nil if the record's writer has died: the claim is not made yet.
func read(f *os.File) (*record, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxRecord { // a program's: reading it might never end
		return nil, status.Errorf(codes.FailedPrecondition, "%s is no record of a claim", f.Name())
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	var r record
	if json.Unmarshal(text, &r) != nil {
		return nil, nil
	}
	return &r, nil
}

// enlarge gives a claim at least the capacity that is required. The quota is set first, and again if
// the claim is large enough: a call that was interrupted may not have come so far.
func enlarge(root *os.Root, s share, want *csi.CapacityRange) (capacity int64, err error) {
	leaf, file := s.leafAndRecord()
	dir, err := openPlain(root, leaf, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, status.Errorf(codes.NotFound, "there is no %s", s.id())
	} else if err != nil {
		return 0, err
	}
	defer dir.Close()
	f, err := openPlain(root, file, unix.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, status.Errorf(codes.FailedPrecondition, "%s has no record in %s: it was not made for a claim, and has no size", s.id(), records)
	} else if err != nil {
		return 0, err
	}
	defer f.Close()
	r, err := read(f)
	switch {
	case err != nil:
		return 0, err
	case r == nil:
		return 0, status.Errorf(codes.FailedPrecondition, "%s is not made yet", s.id())
	case want.LimitBytes != 0 && want.LimitBytes < max(r.Capacity, want.RequiredBytes):
		return 0, status.Errorf(codes.OutOfRange, "%s has %d bytes, and %d are required: more than the limit of %d", s.id(), r.Capacity, want.RequiredBytes, want.LimitBytes)
	}
	was := r.Capacity
	r.Capacity = max(was, want.RequiredBytes)
	if _, err := r.limit(dir); err != nil || r.Capacity == was {
		return r.Capacity, err
	}
	return r.Capacity, write(f, *r)
}

// write replaces a record. A claim that has grown has no shorter one, and a full volume or a death at
// any step leaves the former one.
func write(f *os.File, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(text))); err != nil {
		return err
	}
	return f.Sync()
}

// remove renames the directory first: that fails while programs write in it, and what is removed in
// part is not seen under its name. The record is removed last.
func remove(root *os.Root, s share) (bool, error) {
	leaf, file := s.leafAndRecord()
	_, dirErr := root.Lstat(leaf)
	_, recordErr := root.Lstat(file)
	switch {
	case errors.Is(recordErr, os.ErrNotExist) && errors.Is(dirErr, os.ErrNotExist):
		return false, nil
	case errors.Is(recordErr, os.ErrNotExist):
		return false, status.Errorf(codes.FailedPrecondition, "%s has no record in %s: it was not made for a claim, and is not removed", s.id(), records)
	case recordErr != nil:
		return false, recordErr
	}
	trash := file + removed
	if dirErr == nil {
		if err := root.RemoveAll(trash); err != nil { // of a removal that was interrupted
			return false, err
		}
	}
	if err := root.Rename(leaf, trash); err != nil && !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := root.RemoveAll(trash); err != nil {
		return false, err
	}
	return true, root.Remove(file)
}
