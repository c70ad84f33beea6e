package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/mounts"
)

// What the kubelet adds to the attributes of a volume.
const (
	keyEphemeral    = "csi.storage.k8s.io/ephemeral"
	keyPodNamespace = "csi.storage.k8s.io/pod.namespace"
)

// NodeGetInfo names the node.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.cfg.Node}, nil
}

// NodeGetCapabilities says that volumes have figures.
func (d *Driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	var caps []*csi.NodeServiceCapability
	for _, c := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_VOLUME_CONDITION,
	} {
		caps = append(caps, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}}})
	}
	return &csi.NodeGetCapabilitiesResponse{Capabilities: caps}, nil
}

// NodePublishVolume mounts a directory of a view at the target path. While there is no view it fails,
// the kubelet asks again, and the pod waits.
func (d *Driver) NodePublishVolume(ctx context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case r.TargetPath == "":
		return nil, status.Error(codes.InvalidArgument, "the target path is missing")
	}
	if err := mountable(r.VolumeCapability); err != nil {
		return nil, err
	}
	s, err := shareOf(r.VolumeId, r.VolumeContext)
	if err != nil {
		return nil, err
	}
	if err := d.mayName(s, r.VolumeContext); err != nil {
		return nil, err
	}
	v, err := d.find(s.volume)
	if err != nil {
		return nil, err
	}
	attrs, err := options(v, r.VolumeCapability.GetMount().GetMountFlags())
	if err != nil {
		return nil, err
	}
	if r.Readonly || readOnlyMode(r.VolumeCapability.GetAccessMode().GetMode()) {
		attrs |= mounts.ReadOnly
	}
	err = d.do(ctx, publishOf(r.TargetPath), s.volume, func() error { return d.publish(v, s.dir, r.TargetPath, attrs) })
	if err != nil {
		return nil, err
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// mayName refuses volumes that a pod names itself, unless they belong to the pod's own namespace
// and the administrator allows that.
func (d *Driver) mayName(s share, attributes map[string]string) error {
	if attributes[keyEphemeral] != "true" {
		return nil
	}
	if !d.cfg.Inline {
		return status.Error(codes.PermissionDenied, "pods may not name volumes themselves: the driver runs without --inline-volumes")
	}
	if ns, _, _ := strings.Cut(s.volume, "/"); ns != attributes[keyPodNamespace] {
		return status.Errorf(codes.PermissionDenied, "a pod of the namespace %s may not name the volume %s: that is of another namespace", attributes[keyPodNamespace], s.volume)
	}
	return nil
}

func mountable(c *csi.VolumeCapability) error {
	switch {
	case c == nil:
		return status.Error(codes.InvalidArgument, "the volume's capability is missing")
	case c.GetBlock() != nil:
		return status.Error(codes.InvalidArgument, "a view is a file system, and no block device")
	case c.GetMount() == nil:
		return status.Error(codes.InvalidArgument, "the capability has no access type")
	case c.GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_UNKNOWN:
		return status.Error(codes.InvalidArgument, "the capability has no access mode")
	}
	return nil
}

func readOnlyMode(m csi.VolumeCapability_AccessMode_Mode) bool {
	return m == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY || m == csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY
}

// options reads mountOptions: attributes of the mount, and settings FIELD=VALUE that the volume must
// have. One view serves all pods of a node, so none can have settings of its own.
func options(v config.Volume, flags []string) (mounts.Attrs, error) {
	var attrs mounts.Attrs
	for _, flag := range flags {
		if a, ok := mounts.ParseAttr(flag); ok {
			attrs |= a
		} else if name, value, ok := strings.Cut(flag, "="); !ok {
			return 0, status.Errorf(codes.InvalidArgument, "the mount option %q is neither ro, noexec, nosuid or nodev nor a setting such as wait=2m", flag)
		} else if has, err := v.HasSetting(name, value); err != nil {
			return 0, status.Errorf(codes.InvalidArgument, "the mount option %q: %v", flag, err)
		} else if !has {
			return 0, status.Errorf(codes.FailedPrecondition, "the mount option %q: the daemon's file has another %s for the volume %s", flag, name, v.ID())
		}
	}
	return attrs, nil
}

// publishOf is the subject of a publish. It may hang with its view, so the target path itself is a
// subject only while something is done there: Kubernetes must be able to unpublish it.
func publishOf(target string) string { return "publish of " + target }

func (d *Driver) publish(v config.Volume, dir, target string, attrs mounts.Attrs) error {
	view, err := openView(v)
	if err != nil {
		return err
	}
	defer view.close()
	from, err := view.open(dir)
	if err != nil {
		return err
	}
	defer from.Close()
	// From here on no view is asked.
	if err := d.beginAfter(publishOf(target), target); err != nil {
		return err
	}
	defer d.end(target, "")
	if err := d.reachable(target); err != nil {
		return err
	}
	there, ok, err := mounts.Find(target)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if err := os.Mkdir(target, 0o750); err != nil {
			return status.Errorf(codes.Internal, "the target path: %v", err)
		}
	case err != nil:
		return status.Errorf(codes.Internal, "the target path: %v", err)
	case ok && (there.FSType != mounts.FSType || there.Source != view.mount.Source):
		return status.Errorf(codes.AlreadyExists, "%s is mounted at %s", there.Source, target)
	case ok && there.Device == view.mount.Device:
		if there.Attrs() != view.mount.Attrs()|attrs || there.Root != rootOf(view.mount, dir) {
			return status.Errorf(codes.AlreadyExists, "another directory of %s, or with other options, is mounted at %s", v.ID(), target)
		}
		if !there.Unlinked {
			return nil
		}
		// The name leads to another directory by now, which was just looked up. Containers that run keep the former one.
		table, err := mounts.List()
		if err != nil {
			return asStatus(err)
		}
		r, err := replacementOf(from, dir, table, there)
		if err != nil {
			return asStatus(err)
		}
		defer r.tree.Close()
		return asStatus(d.put(r, nil))
	case ok:
		// It is the repair that replaces it: containers may have copies, which this mount alone tells of.
		d.lookNow()
		return status.Errorf(codes.Aborted, "a former view of %s is mounted at %s, and is being replaced", v.ID(), target)
	}
	tree, err := mounts.Clone(from, attrs)
	if err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	defer tree.Close()
	if err := mounts.Attach(tree, target); err != nil {
		return status.Errorf(codes.Internal, "%v", err)
	}
	d.log.Info("published", slog.String("volume", v.ID()), slog.String("directory", dir), slog.String("target", target))
	return nil
}

// reachable refuses a target path where a mount would be seen by nobody, or never be repaired. The
// program in the pod would write to the directory below it, and nobody would know.
func (d *Driver) reachable(target string) error {
	if !strings.HasPrefix(target, d.cfg.KubeletDir+"/") {
		return status.Errorf(codes.FailedPrecondition, "the target path %s is not below %s: set --kubelet-dir", target, d.cfg.KubeletDir)
	}
	m, _, err := mounts.Containing(filepath.Dir(target))
	if err != nil {
		return status.Errorf(codes.Internal, "the target path: %v", err)
	}
	if !m.Shared {
		return status.Errorf(codes.FailedPrecondition, "the kubelet would not see a mount in %s: the driver's container needs that directory with mountPropagation: Bidirectional", m.Point)
	}
	return nil
}

// rootOf is how the mount table writes a directory of a view.
func rootOf(m mounts.Mount, dir string) string {
	if dir == "." {
		return m.Root
	}
	return strings.TrimSuffix(m.Root, "/") + "/" + dir
}

// NodeUnpublishVolume unmounts all that is at the target path, and removes the path. It asks no view.
func (d *Driver) NodeUnpublishVolume(ctx context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case r.TargetPath == "":
		return nil, status.Error(codes.InvalidArgument, "the target path is missing")
	}
	d.cancel(publishOf(r.TargetPath))
	err := d.do(ctx, r.TargetPath, "", func() error { return d.unpublish(r.TargetPath) })
	if err != nil {
		return nil, err
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

func (d *Driver) unpublish(target string) error {
	for {
		m, ok, err := mounts.Find(target)
		switch {
		case errors.Is(err, os.ErrNotExist):
			return nil
		case err != nil:
			return status.Errorf(codes.Internal, "the target path: %v", err)
		case ok && m.FSType != mounts.FSType:
			return status.Errorf(codes.FailedPrecondition, "%s is mounted at %s, which is not lockfs's", m.Source, target)
		case ok:
			if err := mounts.Detach(target); err != nil {
				return status.Errorf(codes.Internal, "%v", err)
			}
			continue
		}
		if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) { // never what is in it
			return status.Errorf(codes.Internal, "%v", err)
		}
		d.log.Info("unpublished", slog.String("target", target))
		return nil
	}
}

// NodeGetVolumeStats returns the figures of the volume that the view shows, and whether the view
// answers.
func (d *Driver) NodeGetVolumeStats(ctx context.Context, r *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	switch {
	case r.VolumeId == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's id is missing")
	case r.VolumePath == "":
		return nil, status.Error(codes.InvalidArgument, "the volume's path is missing")
	}
	m, ok, err := mounts.Find(r.VolumePath)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "%v", err)
	}
	if !ok || m.FSType != mounts.FSType {
		return nil, status.Errorf(codes.NotFound, "no view is mounted at %s", r.VolumePath)
	}
	found := make(chan unix.Statfs_t, 1)
	err = d.do(ctx, "figures of "+r.VolumePath, m.Source, func() error {
		var st unix.Statfs_t
		err := unix.Statfs(r.VolumePath, &st)
		if err == nil {
			found <- st
		}
		return err
	})
	if err != nil {
		return &csi.NodeGetVolumeStatsResponse{VolumeCondition: &csi.VolumeCondition{
			Abnormal: true, Message: fmt.Sprintf("the view does not answer: %v", err),
		}}, nil
	}
	return figures(<-found), nil
}

func figures(st unix.Statfs_t) *csi.NodeGetVolumeStatsResponse {
	size := st.Frsize
	bytes := &csi.VolumeUsage{
		Unit:      csi.VolumeUsage_BYTES,
		Total:     int64(st.Blocks) * size,
		Available: int64(st.Bavail) * size,
		Used:      int64(st.Blocks-st.Bfree) * size,
	}
	usage := []*csi.VolumeUsage{bytes}
	if st.Ffree <= st.Files { // CephFS says -1: it has no limit
		usage = append(usage, &csi.VolumeUsage{
			Unit:      csi.VolumeUsage_INODES,
			Total:     int64(st.Files),
			Available: int64(st.Ffree),
			Used:      int64(st.Files - st.Ffree),
		})
	}
	return &csi.NodeGetVolumeStatsResponse{
		Usage:           usage,
		VolumeCondition: &csi.VolumeCondition{Message: "the view answers"},
	}
}
