package csi

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func openRoot(t *testing.T) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func claimFor(t *testing.T, name string, capacity int64, parameters map[string]string) claim {
	t.Helper()
	all := map[string]string{keyVolume: "a/v"}
	for k, v := range parameters {
		all[k] = v
	}
	c, err := claimOf(&csi.CreateVolumeRequest{
		Name: name, Parameters: all, CapacityRange: &csi.CapacityRange{RequiredBytes: capacity},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// This file system has no quotas.
func TestQuotaModes(t *testing.T) {
	root := openRoot(t)
	for _, mode := range []string{"", "auto", "none"} {
		parameters := map[string]string{}
		if mode != "" {
			parameters[keyQuota] = mode
		}
		c := claimFor(t, "claim"+mode, 1<<20, parameters)
		for range 2 { // Kubernetes may ask again
			if limited, err := create(root, c); limited || err != nil {
				t.Errorf("quota %q: %v, %v", mode, limited, err)
			}
		}
	}
	c := claimFor(t, "required", 1<<20, map[string]string{keyQuota: "required"})
	if _, err := create(root, c); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a quota is required where there are none: %v", err)
	}
	for _, name := range []string{"required", filepath.Join(records, "required")} {
		if _, err := root.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("the refused claim has left %s: %v", name, err)
		}
	}
	if _, err := claimOf(&csi.CreateVolumeRequest{
		Name: "x", Parameters: map[string]string{keyVolume: "v", keyQuota: "off"},
		VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}},
	}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("quota off: %v", err)
	}
}

func TestEnlarge(t *testing.T) {
	root := openRoot(t)
	c := claimFor(t, "claim", 100, nil)
	if _, err := create(root, c); err != nil {
		t.Fatal(err)
	}
	if err := root.Mkdir("foreign", 0o755); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		leaf            string
		required, limit int64
		want            int64
		code            codes.Code
	}{
		{"claim", 200, 0, 200, codes.OK},
		{"claim", 200, 0, 200, codes.OK}, // asked again
		{"claim", 50, 0, 200, codes.OK},  // a claim never shrinks
		{"claim", 0, 150, 0, codes.OutOfRange},
		{"claim", 300, 250, 0, codes.OutOfRange},
		{"claim", 300, 400, 300, codes.OK},
		{"none", 300, 0, 0, codes.NotFound},
		{"foreign", 300, 0, 0, codes.FailedPrecondition},
	} {
		got, err := enlarge(root, share{"a/v", step.leaf}, &csi.CapacityRange{RequiredBytes: step.required, LimitBytes: step.limit})
		if status.Code(err) != step.code || err == nil && got != step.want {
			t.Errorf("%+v: %d, %v", step, got, err)
		}
	}
	f, err := root.Open(filepath.Join(records, "claim"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if r, err := read(f); err != nil || r == nil || *r != (record{Name: "claim", Capacity: 300}) {
		t.Errorf("the record is %+v, %v", r, err)
	}
	if _, err := create(root, claimFor(t, "claim", 300, nil)); err != nil {
		t.Errorf("the claim as it is now, asked for again: %v", err)
	}
}

// Who can write beside the claims' directories must not have others made writable.
func TestClaimIsNoLink(t *testing.T) {
	root := openRoot(t)
	if err := root.Mkdir("victim", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := root.Symlink("victim", "claim"); err != nil {
		t.Fatal(err)
	}
	if _, err := create(root, claimFor(t, "claim", 0, nil)); !slices.Contains([]error{unix.ENOTDIR, unix.ELOOP}, errnoOf(err)) {
		t.Errorf("a claim whose directory is a symbolic link: %v", err)
	}
	if st, err := root.Stat("victim"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the link's target: %v, %v", st.Mode(), err)
	}
}

func errnoOf(err error) error {
	if e, ok := err.(*os.PathError); ok {
		return e.Err
	}
	return err
}
