package semantics

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/integration/lab"
)

const quotaBytes = "ceph.quota.max_bytes"

// hasQuotas reports whether directories of the volume have quotas: CephFS has.
func hasQuotas(v *lab.Volume) bool {
	_, err := unix.Getxattr(v.Source, "ceph.dir.rbytes", nil)
	return err == nil
}

func setQuota(dir string, value string) lab.Call {
	return lab.Call{Op: "setxattr", Path: dir, Path2: quotaBytes, Data: hex.EncodeToString([]byte(value))}
}

// sizeShown is the size that df shows for a directory.
func sizeShown(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	if st.Bsize != st.Frsize { // many programs multiply by the former
		t.Errorf("%s: the figures are of blocks of %d bytes, and of %d", dir, st.Bsize, st.Frsize)
	}
	return int64(st.Blocks) * st.Frsize
}

// fill appends to a file, and syncs it, until that fails. It returns the file's size.
func fill(t *testing.T, p *lab.Agent, path string) int64 {
	t.Helper()
	fd := p.Open(path, unix.O_WRONLY|unix.O_CREAT|unix.O_APPEND)
	r := p.Do(lab.Call{Op: "untilfailure", Calls: []lab.Call{
		{Op: "write", FD: fd, Data: string(make([]byte, 64<<10))}, {Op: "fsync", FD: fd},
	}})
	if r.Err() != unix.EDQUOT {
		t.Errorf("a full directory: %v, want EDQUOT", r.Err())
	}
	size := p.Must(lab.Call{Op: "size", FD: fd})
	p.Must(lab.Call{Op: "close", FD: fd})
	return int64(size)
}

// A view shows the quotas of CephFS's directories, and lets those set them who have
// CAP_LINUX_IMMUTABLE: programs cannot set their own. Other volumes have none, even if they keep any
// attribute. (docs/SEMANTICS.md, rule 18.)
func TestQuota(t *testing.T) {
	lab.Over(t, testQuota, lab.Local, lab.OverClients, lab.OnNetworkVolume)
}

func testQuota(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	a := v.Mount("a")
	d, f := a.Path("d"), a.Path("f")
	root, owner, bare := lab.NewAgent(t), v.NewUser(1000, 0), lab.NewAgent(t)
	bare.Must(lab.Call{Op: "drop"})
	root.Must(lab.Call{Op: "mkdir", Path: d})
	root.Must(lab.Call{Op: "chown", Path: d, Off: 1000, N: 1000})
	root.Must(lab.Call{Op: "chmod", Path: d, Mode: 0o777})
	root.Must(lab.Call{Op: "close", FD: root.Open(f, unix.O_WRONLY|unix.O_CREAT)})
	get := lab.Call{Op: "getxattr", Path: d, Path2: quotaBytes}

	root.Fails(setQuota(f, "1048576"), unix.ENOTSUP)
	if !hasQuotas(v) {
		root.Fails(setQuota(a.Dir, "1048576"), unix.ENOTSUP)
		root.Fails(setQuota(d, "1048576"), unix.ENOTSUP)
		root.Fails(get, unix.ENOTSUP)
		return
	}
	whole := sizeShown(t, d)
	root.Fails(get, unix.ENODATA)
	root.Must(setQuota(a.Dir, "8388608"))
	if got := sizeShown(t, a.Dir); got != 8<<20 {
		t.Errorf("the root with a quota of 8 MiB shows a size of %d", got)
	}
	root.Must(setQuota(a.Dir, "0"))
	root.Must(setQuota(d, "1048576"))
	for who, p := range map[string]*lab.Agent{"the owner": owner, "root without capabilities": bare} {
		if r := p.Do(setQuota(d, "9999999")); r.Err() != unix.EPERM {
			t.Errorf("%s sets a quota: %v, want EPERM", who, r.Err())
		}
		p.Fails(lab.Call{Op: "removexattr", Path: d, Path2: quotaBytes}, unix.EPERM)
		if r := p.Do(get); r.Err() != nil || r.Data != hex.EncodeToString([]byte("1048576")) {
			t.Errorf("%s reads the quota %s, %v", who, r.Data, r.Err())
		}
	}
	if got := sizeShown(t, d); got != 1<<20 {
		t.Errorf("the directory with a quota of 1 MiB shows a size of %d", got)
	}
	below := filepath.Join(d, "sub", "sub")
	if err := os.MkdirAll(below, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(below, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{below, filepath.Join(below, "f")} {
		if got := sizeShown(t, path); got != 1<<20 {
			t.Errorf("%s, below a quota of 1 MiB, shows a size of %d", path, got)
		}
	}
	if size := fill(t, owner, filepath.Join(d, "f")); size < 1<<19 || size > 4<<20 {
		t.Errorf("a file in a directory of 1 MiB has grown to %d bytes", size)
	}
	root.Fails(setQuota(d, "much"), unix.EINVAL)
	root.Must(setQuota(d, "0"))
	fd := owner.Open(filepath.Join(d, "f"), unix.O_WRONLY|unix.O_APPEND)
	owner.Must(lab.Call{Op: "write", FD: fd, Data: string(make([]byte, 64<<10))})
	owner.Must(lab.Call{Op: "close", FD: fd})
	if got := sizeShown(t, d); got != whole {
		t.Errorf("without a quota the directory shows a size of %d, want %d", got, whole)
	}
}

// The directory of a claim on CephFS has the claim's size, and grows with it. (docs/CSI.md)
func TestQuotaOfAClaim(t *testing.T) {
	lab.Over(t, testQuotaOfAClaim, lab.OnNetworkVolume)
}

func testQuotaOfAClaim(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t)
	if !hasQuotas(v) {
		t.Skip("the volume has no quotas")
	}
	a := v.Mount("a")
	config, socket := filepath.Join(t.TempDir(), "lockfs.yaml"), filepath.Join(t.TempDir(), "s")
	text := fmt.Sprintf("volumes:\n- {name: v, source: %s, mountpoint: %s, endpoints: [unix:///not/used]}\n", v.Source, a.Dir)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	controller := exec.Command(lab.Program, "csi", "--controller", "--config", config, "--endpoint", "unix://"+socket)
	controller.Stderr = &lab.LogBuffer{}
	if err := controller.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = controller.Process.Signal(unix.SIGTERM)
		if err := controller.Wait(); err != nil {
			t.Errorf("lockfs csi: %v\n%s", err, controller.Stderr)
		}
	})
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, ctx := csi.NewControllerClient(conn), context.Background()
	create := func(name, quota string) (string, error) {
		made, err := client.CreateVolume(ctx, &csi.CreateVolumeRequest{
			Name: name, Parameters: map[string]string{"volume": "v", "directory": "claims", "quota": quota},
			CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 20},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
			}},
		})
		return made.GetVolume().GetVolumeId(), err
	}
	quotaOf := func(name string) int64 {
		var value [32]byte
		n, err := unix.Getxattr(a.Path("claims/"+name), quotaBytes, value[:])
		if err == unix.ENODATA {
			return 0
		}
		limit, parseErr := strconv.ParseInt(string(value[:max(n, 0)]), 10, 64)
		if err != nil || parseErr != nil {
			t.Fatalf("the quota of %s: %v, %v", name, err, parseErr)
		}
		return limit
	}
	id := ""
	for _, c := range []struct {
		quota string
		want  int64
	}{{"none", 0}, {"auto", 1 << 20}, {"required", 1 << 20}} {
		var err error
		if id, err = create("of-"+c.quota, c.quota); err != nil {
			t.Fatal(err)
		}
		if got := quotaOf("of-" + c.quota); got != c.want {
			t.Errorf("quota %s: %d bytes, want %d", c.quota, got, c.want)
		}
	}
	program := v.NewUser(1000, 0)
	full := a.Path("claims/of-required/f")
	small := fill(t, program, full)
	for range 2 {
		if r, err := client.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 16 << 20}}); err != nil || r.CapacityBytes != 16<<20 || r.NodeExpansionRequired {
			t.Fatalf("expand: %v, %v", r, err)
		}
	}
	if got := quotaOf("of-required"); got != 16<<20 {
		t.Errorf("the enlarged claim has %d bytes", got)
	}
	if large := fill(t, program, full); large < 8<<20 || small > 4<<20 {
		t.Errorf("the claim had room for %d bytes, and then %d", small, large)
	}
	if got := sizeShown(t, a.Path("claims/of-required")); got != 16<<20 {
		t.Errorf("the claim shows a size of %d", got)
	}
	if _, err := client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Errorf("a full claim is removed: %v", err)
	}
	if _, err := client.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 32 << 20}}); status.Code(err) != codes.NotFound {
		t.Errorf("a removed claim is enlarged: %v", err)
	}
}
