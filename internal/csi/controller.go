package csi

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// ControllerGetCapabilities says that volumes are made, enlarged and removed.
func (d *Driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	var can []*csi.ControllerServiceCapability
	for _, what := range []csi.ControllerServiceCapability_RPC_Type{
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	} {
		can = append(can, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: what}}})
	}
	return &csi.ControllerGetCapabilitiesResponse{Capabilities: can}, nil
}

// claim is a directory to make.
type claim struct {
	share
	record
	mode os.FileMode
}

// CreateVolume makes a directory for a claim, through the view. Its quota is the size of the claim,
// where the volume has quotas.
func (d *Driver) CreateVolume(ctx context.Context, r *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	c, err := claimOf(r)
	if err != nil {
		return nil, err
	}
	limited := false
	err = d.in(ctx, c.share, func(v *view) error {
		dir, err := v.makeAll(path.Dir(c.dir))
		if err != nil {
			return err
		}
		return under(dir, func(root *os.Root) (err error) {
			limited, err = create(root, c)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	d.log.Info("made a claim's directory", slog.String("volume", c.volume), slog.String("directory", c.dir), slog.Bool("quota", limited))
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{
		VolumeId:      c.id(),
		CapacityBytes: c.Capacity,
		VolumeContext: map[string]string{keyVolume: c.volume, keyDirectory: c.dir},
	}}, nil
}

func claimOf(r *csi.CreateVolumeRequest) (claim, error) {
	c := claim{record: record{Name: r.Name, Capacity: cmp.Or(r.CapacityRange.GetRequiredBytes(), r.CapacityRange.GetLimitBytes())}, mode: 0o777}
	switch {
	case r.Name == "":
		return c, status.Error(codes.InvalidArgument, "the volume's name is missing")
	case len(r.VolumeCapabilities) == 0:
		return c, status.Error(codes.InvalidArgument, "the volume's capabilities are missing")
	case r.VolumeContentSource != nil:
		return c, status.Error(codes.InvalidArgument, "a directory is not made of a snapshot or of another volume")
	case r.CapacityRange.GetRequiredBytes() < 0, r.CapacityRange.GetLimitBytes() < 0:
		return c, status.Error(codes.InvalidArgument, "the capacity is negative")
	case r.CapacityRange.GetLimitBytes() != 0 && r.CapacityRange.GetLimitBytes() < c.Capacity:
		return c, status.Error(codes.OutOfRange, "the limit of the capacity is less than what is required")
	}
	for _, capability := range r.VolumeCapabilities {
		if err := mountable(capability); err != nil {
			return c, err
		}
	}
	volume, base := "", ""
	for key, value := range r.Parameters {
		switch {
		case key == keyVolume:
			volume = value
		case key == keyDirectory:
			base = value
		case key == keyMode:
			mode, err := strconv.ParseUint(value, 8, 16)
			if err != nil || mode > 0o1777 {
				return c, status.Errorf(codes.InvalidArgument, "the parameter mode %q is not a mode such as 0770", value)
			}
			c.mode = os.FileMode(mode & 0o777)
			if mode&unix.S_ISVTX != 0 {
				c.mode |= os.ModeSticky
			}
		case key == keyQuota:
			mode, ok := quotaModes[value]
			if !ok {
				return c, status.Errorf(codes.InvalidArgument, "the parameter quota %q is not auto, required or none", value)
			}
			c.Quota = mode
		case strings.HasPrefix(key, "csi.storage.k8s.io/"): // the names of the claim
		default:
			return c, status.Errorf(codes.InvalidArgument, "no such parameter: %s", key)
		}
	}
	if c.Quota == quotaRequired && c.Capacity == 0 {
		return c, status.Error(codes.InvalidArgument, "a quota is required, and the claim has no size")
	}
	if volume == "" {
		return c, status.Errorf(codes.InvalidArgument, "the parameter %s is missing: NAMESPACE/NAME of the lockfs volume", keyVolume)
	}
	s, err := newShare(volume, path.Join(base, leaf(r.Name)))
	c.share = s
	if err == nil && len(c.id()) > maxID {
		err = status.Errorf(codes.InvalidArgument, "the handle %s has more than %d bytes: shorten the parameter %s", c.id(), maxID, keyDirectory)
	}
	return c, err
}

// maxID is the most that a volume's id may have by the specification.
const maxID = 128

var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// leaf is the name of a claim's directory. Its record is not what remove makes of another's.
func leaf(name string) string {
	if plainName.MatchString(name) && !strings.HasSuffix(name, removed) {
		return name
	}
	return fmt.Sprintf("claim-%x", sha256.Sum256([]byte(name)))[:38]
}

// in runs an operation in the view of a volume.
func (d *Driver) in(ctx context.Context, s share, op func(*view) error) error {
	v, err := d.find(s.volume)
	if err != nil {
		return err
	}
	return d.do(ctx, s.id(), s.volume, func() error {
		view, err := openView(v)
		if err != nil {
			return err
		}
		defer view.close()
		return asStatus(op(view))
	})
}

// under runs an operation in an open directory, which it closes. Nothing leads out of it.
func under(dir *os.File, op func(*os.Root) error) error {
	defer dir.Close()
	root, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", dir.Fd()))
	if err != nil {
		return err
	}
	defer root.Close()
	return op(root)
}

// fleeting are errors of a view or a volume that does not answer now. Kubernetes must not take them for
// a refusal: what was begun may have been done.
var fleeting = []error{unix.ENOTCONN, unix.ECONNABORTED, unix.EIO, unix.ESTALE, unix.ENOLCK, unix.ETIMEDOUT}

// asStatus turns an error into a gRPC status. EBUSY: another controller has a lock, and works for the
// same claim.
func asStatus(err error) error {
	switch _, is := status.FromError(err); {
	case is:
		return err
	case errors.Is(err, unix.EBUSY):
		return status.Errorf(codes.Aborted, "another operation is under way: %v", err)
	case slices.ContainsFunc(fleeting, func(f error) bool { return errors.Is(err, f) }):
		return status.Errorf(codes.Unavailable, "%v", err)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return status.Errorf(codes.ResourceExhausted, "%v", err)
	}
	return status.Errorf(codes.Internal, "%v", err)
}

// DeleteVolume removes a directory that CreateVolume has made, with all that is in it. It does
// nothing while a program has a file open there for write.
func (d *Driver) DeleteVolume(ctx context.Context, r *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if r.VolumeId == "" {
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	}
	s, err := shareOf(r.VolumeId, nil)
	if err != nil || s.dir == "." { // CreateVolume has made none such
		return &csi.DeleteVolumeResponse{}, nil
	}
	removed := false
	err = d.in(ctx, s, func(v *view) error {
		dir, err := v.open(path.Dir(s.dir))
		if status.Code(err) == codes.NotFound {
			return nil
		} else if err != nil {
			return err
		}
		return under(dir, func(root *os.Root) (err error) {
			removed, err = remove(root, s)
			if errors.Is(err, unix.EBUSY) {
				return status.Errorf(codes.FailedPrecondition, "programs use it: %v", err)
			}
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	if removed {
		d.log.Info("removed a claim's directory", slog.String("volume", s.volume), slog.String("directory", s.dir))
	}
	return &csi.DeleteVolumeResponse{}, nil
}

// ControllerExpandVolume enlarges a claim: its record, and its quota if it has one. Nodes have
// nothing to do for it.
func (d *Driver) ControllerExpandVolume(ctx context.Context, r *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case r.CapacityRange == nil:
		return nil, status.Error(codes.InvalidArgument, "the capacity is missing")
	case r.CapacityRange.RequiredBytes < 0, r.CapacityRange.LimitBytes < 0:
		return nil, status.Error(codes.InvalidArgument, "the capacity is negative")
	}
	s, err := shareOf(r.VolumeId, nil)
	if err != nil || s.dir == "." {
		return nil, status.Errorf(codes.NotFound, "%s is no directory of a claim", r.VolumeId)
	}
	var capacity int64
	err = d.in(ctx, s, func(v *view) error {
		dir, err := v.open(path.Dir(s.dir))
		if err != nil {
			return err
		}
		return under(dir, func(root *os.Root) (err error) {
			capacity, err = enlarge(root, s, r.CapacityRange)
			return err
		})
	})
	if err != nil {
		return nil, err
	}
	d.log.Info("a claim has its new size", slog.String("volume", s.volume), slog.String("directory", s.dir), slog.Int64("bytes", capacity))
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: capacity}, nil
}

// ValidateVolumeCapabilities confirms what every volume can.
func (d *Driver) ValidateVolumeCapabilities(ctx context.Context, r *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case len(r.VolumeCapabilities) == 0:
		return nil, status.Error(codes.InvalidArgument, "the volume's capabilities are missing")
	}
	s, err := shareOf(r.VolumeId, r.VolumeContext)
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "%v", err)
	}
	err = d.in(ctx, s, func(v *view) error {
		dir, err := v.open(s.dir)
		if err != nil {
			return err
		}
		return dir.Close()
	})
	if err != nil {
		return nil, err
	}
	for _, c := range r.VolumeCapabilities {
		if err := mountable(c); err != nil {
			return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
		}
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: r.VolumeContext, VolumeCapabilities: r.VolumeCapabilities, Parameters: r.Parameters,
	}}, nil
}
