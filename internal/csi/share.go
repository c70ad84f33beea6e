package csi

import (
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/config"
)

// The attributes of a PersistentVolume, and the parameters of a StorageClass.
const (
	keyVolume    = "volume"    // NAMESPACE/NAME of the lockfs volume; NAME alone: in the namespace default
	keyDirectory = "directory" // in the volume; "": all of it
	keyMode      = "mode"      // of a claim's directory, in octal digits
	keyQuota     = "quota"     // auto, required or none
)

// share is what a PersistentVolume names: a directory of a volume.
type share struct {
	volume string // NAMESPACE/NAME
	dir    string // relative to the volume's root, and clean; ".": all of it
}

// id is the handle that Kubernetes keeps.
func (s share) id() string { return path.Join(s.volume, s.dir) }

// shareOf reads attributes, or, if they name no volume, a handle NAMESPACE/NAME or
// NAMESPACE/NAME/DIRECTORY.
func shareOf(id string, attributes map[string]string) (share, error) {
	volume, dir := attributes[keyVolume], attributes[keyDirectory]
	if volume == "" {
		if dir != "" {
			return share{}, status.Errorf(codes.InvalidArgument, "%s is given without %s", keyDirectory, keyVolume)
		}
		parts := strings.SplitN(id, "/", 3)
		if len(parts) < 2 {
			return share{}, status.Errorf(codes.InvalidArgument, "the handle %q is not NAMESPACE/NAME of a volume, and the attribute %s is not given", id, keyVolume)
		}
		volume = parts[0] + "/" + parts[1]
		if len(parts) == 3 {
			dir = parts[2]
		}
	}
	return newShare(volume, dir)
}

func newShare(volume, dir string) (share, error) {
	if !strings.Contains(volume, "/") {
		volume = "default/" + volume
	}
	if strings.ContainsRune(dir, 0) {
		return share{}, status.Errorf(codes.InvalidArgument, "the directory %q is no path", dir)
	}
	for part := range strings.SplitSeq(dir, "/") {
		if part == ".." {
			return share{}, status.Errorf(codes.InvalidArgument, "the directory %q leads out of the volume", dir)
		}
	}
	return share{volume, strings.TrimPrefix(path.Clean("/"+dir), "/")}.normal(), nil
}

func (s share) normal() share {
	if s.dir == "" {
		s.dir = "."
	}
	return s
}

// find returns the configuration of a volume that this node serves. Unavailable: the kubelet asks
// again, and the file may name the volume by then.
func (d *Driver) find(id string) (config.Volume, error) {
	volumes := d.cfg.Volumes()
	i := slices.IndexFunc(volumes, func(v config.Volume) bool { return v.ID() == id })
	if i < 0 {
		return config.Volume{}, status.Errorf(codes.Unavailable, "the daemon's file has no volume %s", id)
	}
	return volumes[i], nil
}
