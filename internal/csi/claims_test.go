package csi

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
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

func TestNegativeCapacity(t *testing.T) {
	for _, capacity := range []*csi.CapacityRange{{RequiredBytes: -1}, {LimitBytes: -1}} {
		if _, err := claimOf(&csi.CreateVolumeRequest{
			Name: "x", Parameters: map[string]string{keyVolume: "v"}, CapacityRange: capacity,
			VolumeCapabilities: []*csi.VolumeCapability{{AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}}}},
		}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "negative") {
			t.Errorf("%v: %v", capacity, err)
		}
		if _, err := new(Driver).ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: "a/v/x", CapacityRange: capacity}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("enlarge to %v: %v", capacity, err)
		}
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

// Who can write beside the claims' directories must not have others made writable, or overwritten.
func TestClaimIsNoLink(t *testing.T) {
	root := openRoot(t)
	if err := root.Mkdir("victim", 0o700); err != nil {
		t.Fatal(err)
	}
	c := claimFor(t, "claim", 100, nil)
	if _, err := create(root, c); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(root.Remove("claim"), root.Symlink("victim", "claim")); err != nil {
		t.Fatal(err)
	}
	if _, err := create(root, c); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a claim whose directory is a symbolic link: %v", err)
	}
	if _, err := enlarge(root, c.share, &csi.CapacityRange{RequiredBytes: 200}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("it is enlarged: %v", err)
	}
	if st, err := root.Stat("victim"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the link's target: %v, %v", st.Mode(), err)
	}
}

func TestRecordIsNoLink(t *testing.T) {
	for _, link := range []string{records, filepath.Join(records, "claim")} {
		root := openRoot(t)
		if err := errors.Join(root.Mkdir("d", 0o755), root.WriteFile("d/claim", []byte("{}"), 0o600)); err != nil {
			t.Fatal(err)
		}
		target := "d"
		if link != records {
			target = "../d/claim"
			if err := root.Mkdir(records, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(root.Symlink(target, link), root.Mkdir("claim", 0o755)); err != nil {
			t.Fatal(err)
		}
		c := claimFor(t, "claim", 100, nil)
		if _, err := create(root, c); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s is a symbolic link, and a claim is made: %v", link, err)
		}
		if _, err := enlarge(root, c.share, &csi.CapacityRange{RequiredBytes: 200}); !errors.Is(err, unix.ELOOP) {
			t.Errorf("%s is a symbolic link, and a claim is enlarged: %v", link, err)
		}
		if text, err := root.ReadFile("d/claim"); string(text) != "{}" || err != nil {
			t.Errorf("the file that the link leads to: %q, %v", text, err)
		}
	}
}

// Who can write in the records' directory cannot have the controller wait, or fill its memory.
func TestRecordIsAFile(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := errors.Join(root.Mkdir(records, 0o755), root.Mkdir("fifo", 0o755), root.Mkdir("huge", 0o755),
		unix.Mkfifo(filepath.Join(dir, records, "fifo"), 0o600), root.WriteFile(filepath.Join(records, "huge"), nil, 0o600),
		os.Truncate(filepath.Join(dir, records, "huge"), 1<<40)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "huge"} {
		c := claimFor(t, name, 100, nil)
		if _, err := create(root, c); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("create with a record that is a %s: %v", name, err)
		}
		if _, err := enlarge(root, c.share, &csi.CapacityRange{RequiredBytes: 200}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("enlarge with a record that is a %s: %v", name, err)
		}
	}
}

// A directory that was there before is not given to a claim, nor removed with it.
func TestClaimIsNew(t *testing.T) {
	root := openRoot(t)
	if err := errors.Join(root.Mkdir("claim", 0o700), root.Mkdir("claim/f", 0o700), root.Mkdir("empty", 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, err := create(root, claimFor(t, "empty", 100, nil)); err != nil {
		t.Errorf("a claim with the name of an empty directory: %v", err)
	}
	if _, err := create(root, claimFor(t, "claim", 100, nil)); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a claim with the name of a directory: %v", err)
	}
	if st, err := root.Stat("claim"); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v, %v", st.Mode(), err)
	}
	if _, err := root.Lstat(filepath.Join(records, "claim")); !os.IsNotExist(err) {
		t.Errorf("a record is left: %v", err)
	}
}

// The limit of a file's size stands for a full volume. It fails a write before any byte.
func TestFullVolumeKeepsTheRecord(t *testing.T) {
	if os.Getenv("LOCKFS_TEST_FULL") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestFullVolumeKeepsTheRecord$")
		cmd.Env = append(os.Environ(), "LOCKFS_TEST_FULL=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	signal.Ignore(unix.SIGXFSZ)
	root := openRoot(t)
	c := claimFor(t, "claim", 100, nil)
	if _, err := create(root, c); err != nil {
		t.Fatal(err)
	}
	full := func(size uint64) {
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &was); err != nil {
			t.Fatal(err)
		}
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: was.Max}); err != nil {
			t.Fatal(err)
		}
	}
	full(0)
	if _, err := enlarge(root, c.share, &csi.CapacityRange{RequiredBytes: 200}); !errors.Is(err, unix.EFBIG) {
		t.Errorf("a claim grows on a full volume: %v", err)
	}
	if _, err := create(root, claimFor(t, "other", 100, nil)); !errors.Is(err, unix.EFBIG) {
		t.Errorf("a claim is made on a full volume: %v", err)
	}
	full(1 << 20)
	for _, name := range []string{"other", filepath.Join(records, "other")} {
		if _, err := root.Lstat(name); !os.IsNotExist(err) {
			t.Errorf("the claim that was not made has left %s: %v", name, err)
		}
	}
	if got, err := enlarge(root, c.share, &csi.CapacityRange{RequiredBytes: 200}); got != 200 || err != nil {
		t.Errorf("then there is room: %d, %v", got, err)
	}
}

// Kubernetes takes most codes for the end of a request. It must ask again where a view or a volume did
// not answer, or where another controller was at it.
func TestCodesOfErrors(t *testing.T) {
	for err, code := range map[error]codes.Code{
		unix.ENOTCONN: codes.Unavailable, unix.ECONNABORTED: codes.Unavailable, unix.EIO: codes.Unavailable,
		unix.ESTALE: codes.Unavailable, unix.ENOLCK: codes.Unavailable, unix.ETIMEDOUT: codes.Unavailable,
		unix.EBUSY: codes.Aborted, unix.EDQUOT: codes.ResourceExhausted, unix.EACCES: codes.Internal,
		status.Error(codes.NotFound, "x"): codes.NotFound,
	} {
		if errno, is := err.(syscall.Errno); is {
			err = &os.PathError{Op: "open", Path: "f", Err: errno}
		}
		if got := status.Code(asStatus(err)); got != code {
			t.Errorf("%v: %v, want %v", err, got, code)
		}
	}
}
