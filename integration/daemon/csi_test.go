package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/internal/mounts"
)

// driver is a 'lockfs csi' beside the daemon of a node.
type driver struct {
	t       *testing.T
	kubelet string
	csi.NodeClient
	csi.ControllerClient
	args []string
	cmd  *exec.Cmd
	log  *lab.LogBuffer
}

func (n *node) driver(args ...string) *driver {
	n.T.Helper()
	d := &driver{t: n.T, kubelet: filepath.Join(n.Vol.Dir, "kubelet"), log: &lab.LogBuffer{}}
	if err := os.MkdirAll(d.kubelet, 0o755); err != nil {
		n.T.Fatal(err)
	}
	shareDir(n.T, d.kubelet)
	socket := "unix://" + filepath.Join(n.T.TempDir(), "s")
	d.args = append([]string{"csi", "--config", n.config, "--endpoint", socket, "--kubelet-dir", d.kubelet, "--node", "n"}, args...)
	d.start()
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Second}))
	if err != nil {
		n.T.Fatal(err)
	}
	d.NodeClient, d.ControllerClient = csi.NewNodeClient(conn), csi.NewControllerClient(conn)
	n.T.Cleanup(func() {
		conn.Close()
		_ = d.cmd.Process.Signal(unix.SIGTERM)
		if err := d.cmd.Wait(); err != nil {
			n.T.Errorf("lockfs csi: %v\n%s", err, d.log)
		}
	})
	return d
}

func (d *driver) start() {
	d.t.Helper()
	d.cmd = exec.Command(lab.Program, d.args...)
	d.cmd.Stderr = d.log
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
}

// noWarnings fails the test if the log has warnings, other than that something takes long: a machine can
// be slow.
func (d *driver) noWarnings() {
	d.t.Helper()
	for line := range strings.Lines(d.log.String()) {
		slow := strings.Contains(line, "DeadlineExceeded") || strings.Contains(line, "an operation is still under way")
		if strings.Contains(line, "level=WARN") && !slow {
			d.t.Error(line)
		}
	}
}

func (d *driver) kill() {
	d.t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		d.t.Error(err)
	}
	_ = d.cmd.Wait()
}

// shareDir makes the directory a mount that others see mounts in, as the kubelet's is.
func shareDir(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mounts.Detach(dir) })
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
}

func capability(options ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{MountFlags: options}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER},
	}
}

// publish asks for a volume at a path of the kubelet, which it returns.
func (d *driver) publish(name string, r *csi.NodePublishVolumeRequest) (string, error) {
	d.t.Helper()
	r.TargetPath = filepath.Join(d.kubelet, name)
	if r.VolumeCapability == nil {
		r.VolumeCapability = capability()
	}
	d.t.Cleanup(func() {
		for mounts.Detach(r.TargetPath) == nil {
			continue
		}
	})
	_, err := d.NodePublishVolume(context.Background(), r)
	return r.TargetPath, err
}

func (d *driver) mustPublish(name string, r *csi.NodePublishVolumeRequest) string {
	d.t.Helper()
	target, err := d.publish(name, r)
	if err != nil {
		d.t.Fatal(err)
	}
	return target
}

func (d *driver) refused(code codes.Code, r *csi.NodePublishVolumeRequest) {
	d.t.Helper()
	target, err := d.publish("refused", r)
	if status.Code(err) != code {
		d.t.Errorf("%v %v: %v, want %v", r.VolumeId, r.VolumeContext, err, code)
	}
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		d.t.Errorf("a target path was made: %v", err)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := lab.InTime(func() error { return os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644) }); err != nil {
		t.Error(err)
	}
}

func TestCSIPublishes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	for _, dir := range []string{"a/b", "secret"} {
		if err := os.MkdirAll(filepath.Join(n.source("v"), dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.list("v namespace: team, wait: 2m,")
	d := n.driver("--inline-volumes")
	d.refused(codes.Unavailable, &csi.NodePublishVolumeRequest{VolumeId: "team/v"}) // no daemon yet
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })

	all := d.mustPublish("all", &csi.NodePublishVolumeRequest{VolumeId: "team/v"})
	part := d.mustPublish("part", &csi.NodePublishVolumeRequest{VolumeId: "team/v/a/b", VolumeCapability: capability("wait=120s", "noexec")})
	other := d.mustPublish("other", &csi.NodePublishVolumeRequest{VolumeId: "any", VolumeContext: map[string]string{"volume": "team/v", "directory": "/a/b/"}, Readonly: true})
	write(t, all, "a/b/f", "through the view")
	for _, dir := range []string{part, other} {
		if b, err := os.ReadFile(filepath.Join(dir, "f")); string(b) != "through the view" || err != nil {
			t.Errorf("%s: %q, %v", dir, b, err)
		}
	}
	if err := os.WriteFile(filepath.Join(other, "f"), nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("a write to what was published read-only: %v", err)
	}
	holder, err := os.OpenFile(filepath.Join(part, "f"), os.O_WRONLY|unix.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if out := lab.Output(t, lab.Program, "ls", "--config", n.config, n.view("v")); !strings.Contains(out, "a/b/f") {
		t.Errorf("no lock by a published path: %s", out)
	}
	holder.Close()

	// The same again is nothing new; another is a mistake.
	d.mustPublish("part", &csi.NodePublishVolumeRequest{VolumeId: "team/v/a/b", VolumeCapability: capability("noexec")})
	if _, err := d.publish("part", &csi.NodePublishVolumeRequest{VolumeId: "team/v/a/b"}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same without noexec: %v", err)
	}
	if _, err := d.publish("part", &csi.NodePublishVolumeRequest{VolumeId: "team/v/a"}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("another directory at the same path: %v", err)
	}
	if _, err := d.publish("part", &csi.NodePublishVolumeRequest{VolumeId: "team/v/a/b", Readonly: true}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the same read-only: %v", err)
	}

	// A program that may write to the volume cannot lead out of it, or to what another claim has.
	if err := os.Symlink("/etc", filepath.Join(all, "out")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("secret", filepath.Join(all, "in")); err != nil {
		t.Fatal(err)
	}
	for id, code := range map[string]codes.Code{
		"team/v/out": codes.InvalidArgument, "team/v/in": codes.InvalidArgument, "team/v/../etc": codes.InvalidArgument,
		"team/v/a/\x00": codes.InvalidArgument, "team/../../etc": codes.InvalidArgument, "../..": codes.Unavailable,
		"team/v/none": codes.NotFound, "team/v/a/b/f": codes.NotFound, "team": codes.InvalidArgument, "team/other": codes.Unavailable,
	} {
		d.refused(code, &csi.NodePublishVolumeRequest{VolumeId: id})
	}
	d.refused(codes.FailedPrecondition, &csi.NodePublishVolumeRequest{VolumeId: "team/v", VolumeCapability: capability("wait=30s")})
	d.refused(codes.InvalidArgument, &csi.NodePublishVolumeRequest{VolumeId: "team/v", VolumeCapability: capability("source=/etc")})

	// What a pod names itself.
	inline := func(volume, namespace string) *csi.NodePublishVolumeRequest {
		return &csi.NodePublishVolumeRequest{VolumeId: "csi-1234", VolumeContext: map[string]string{
			"volume": volume, "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.namespace": namespace,
		}}
	}
	d.mustPublish("inline", inline("team/v", "team"))
	d.refused(codes.PermissionDenied, inline("team/v", "default"))

	stats, err := d.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: "team/v", VolumePath: part})
	if err != nil || len(stats.Usage) != 2 || stats.Usage[0].Total == 0 || stats.VolumeCondition.Abnormal {
		t.Errorf("figures: %v, %v", stats, err)
	}
	for range 2 {
		if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "team/v", TargetPath: part}); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(part); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target path is left: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(n.source("v"), "a/b/f")); err != nil {
		t.Error(err)
	}
}

// Without the switch no pod names a volume.
func TestCSIInlineIsOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v")
	n.driver().refused(codes.PermissionDenied, &csi.NodePublishVolumeRequest{VolumeId: "csi-1234", VolumeContext: map[string]string{
		"volume": "default/v", "csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.namespace": "default",
	}})
}

// pod is a shell in a mount namespace that hears of no other mount, as containers are.
type pod struct {
	t   *testing.T
	run func(script string) string
}

func startPod(t *testing.T, mount string) *pod {
	t.Helper()
	cmd := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", mount+`; while read -r line; do eval "$line" 2>&1; echo "--- $?"; done`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	var all strings.Builder
	p := &pod{t: t}
	p.run = func(script string) string {
		t.Helper()
		if _, err := in.Write([]byte(script + "\n")); err != nil {
			t.Fatal(err)
		}
		all.Reset()
		b := make([]byte, 4096)
		for !strings.Contains(all.String(), "--- ") || !strings.HasSuffix(all.String(), "\n") {
			k, err := out.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			all.Write(b[:k])
		}
		return all.String()
	}
	return p
}

// A daemon that died leaves dead mounts, also in pods. When there is one again, a pod's next open
// works: by the path of its volume, by a subPath of it, and by one that is read-only.
func TestCSIRepairsRunningPods(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v ttl: 15s,")
	if err := os.MkdirAll(filepath.Join(n.source("v"), "dir/sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := n.driver()
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	all := d.mustPublish("all", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	part := d.mustPublish("part", &csi.NodePublishVolumeRequest{VolumeId: "default/v/dir", Readonly: true})
	in := t.TempDir()
	for _, name := range []string{"data", "sub"} {
		if err := os.MkdirAll(filepath.Join(in, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p := startPod(t, strings.Join([]string{
		"mount --bind " + all + " " + in + "/data",
		"mount --bind " + part + "/sub " + in + "/sub", // of a read-only volume
	}, " && ")+"; cd "+in)
	if out := p.run("echo before >>data/log"); out != "--- 0\n" {
		t.Fatal(out)
	}
	for round := range 3 {
		n.Kill()
		if out := p.run("cat data/log"); strings.Contains(out, "--- 0") {
			t.Fatalf("the view of a killed daemon answers: %s", out)
		}
		stats, err := d.NodeGetVolumeStats(context.Background(), &csi.NodeGetVolumeStatsRequest{VolumeId: "default/v", VolumePath: all})
		if err != nil || !stats.VolumeCondition.GetAbnormal() {
			t.Errorf("figures of a dead view: %v, %v", stats, err)
		}
		n.start()
		lab.Eventually(t, "the pod has the new view", func() bool {
			return p.run("test -e data/dir/sub") == "--- 0\n" && p.run("test -d sub && stat -f -c %t sub") == "65735546\n--- 0\n"
		})
		if out := p.run("echo again >>data/log; cat data/log | wc -l"); !strings.HasSuffix(out, "--- 0\n") || len(strings.Fields(out)) != 3 || strings.Fields(out)[0] != string(rune('2'+round)) {
			t.Errorf("round %d: %q", round, out)
		}
		if out := p.run("echo no >sub/f"); !strings.Contains(out, "Read-only") {
			t.Errorf("what was read-only: %s", out)
		}
		if out := p.run(`grep -c " ` + in + ` " /proc/self/mountinfo; grep -c "` + in + `/" /proc/self/mountinfo`); !strings.HasPrefix(out, "0\n2\n") {
			t.Errorf("mounts pile up: %s", out)
		}
		lab.Eventually(t, "the kubelet's path has it too", func() bool {
			return lab.FSType(all) == unix.FUSE_SUPER_MAGIC && lab.FSType(part) == unix.FUSE_SUPER_MAGIC
		})
	}
	d.noWarnings()

	// What is mounted inside of the view is not taken away, and the log says what to do.
	if out := p.run("mkdir data/conf && mount -t tmpfs conf data/conf && echo kept >data/conf/f"); out != "--- 0\n" {
		t.Fatal(out)
	}
	n.Kill()
	n.start()
	lab.Eventually(t, "the log says what cannot be repaired", func() bool { return strings.Contains(d.log.String(), in+"/data/conf is mounted in it") })
	lab.Eventually(t, "the kubelet's path has the view all the same", func() bool { return lab.FSType(all) == unix.FUSE_SUPER_MAGIC })
	if out := p.run(`grep -c " ` + `[^ ]*/data/conf " /proc/self/mountinfo`); out != "1\n--- 0\n" {
		t.Errorf("what was mounted in the view: %s", out)
	}
	for _, target := range []string{all, part} {
		if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", target, err)
		}
	}
}

// A published directory can lose its name in the kernel: here another node renames it for a while.
// It is unpublished all the same, and repaired when it has its name again.
func TestCSIDirectoriesWithoutNames(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v ttl: 3s,")
	at := func(dir string) string { return filepath.Join(n.source("v"), dir) }
	for _, dir := range []string{"dir/sub", "gone"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(at(from), at(to)); err != nil {
			t.Fatal(err)
		}
	}
	d := n.driver()
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	all := d.mustPublish("all", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	part := d.mustPublish("part", &csi.NodePublishVolumeRequest{VolumeId: "default/v/dir"})
	gone := d.mustPublish("gone", &csi.NodePublishVolumeRequest{VolumeId: "default/v/gone"})
	sub := t.TempDir()
	p := startPod(t, "mount --bind "+part+"/sub "+sub)
	if out := p.run("mountpoint -q " + sub); out != "--- 0\n" {
		t.Fatal(out)
	}

	rename("dir/sub", "dir/away")
	lab.Eventually(t, "the pod's directory has no name", func() bool {
		_, err := os.Stat(filepath.Join(all, "dir/sub"))
		return err != nil && p.run("grep -q '/dir/sub//deleted "+sub+" ' /proc/self/mountinfo") == "--- 0\n"
	})
	rename("dir", "away")
	rename("gone", "away/gone")
	for name, target := range map[string]string{"dir": part, "gone": gone} {
		lab.Eventually(t, "what is published has no name", func() bool {
			_, err := os.Stat(filepath.Join(all, name))
			m, ok, findErr := mounts.Find(target)
			if !ok || findErr != nil {
				t.Fatalf("what is mounted at %s: %+v, %t, %v", target, m, ok, findErr)
			}
			return err != nil && m.Unlinked
		})
	}
	refused := exec.Command(lab.Program, "exec", "--config", n.config, filepath.Join(part, "f"), "--", "true")
	if status, _, stderr := lab.Outcome(t, refused); status != 2 || !strings.Contains(stderr, "was named /dir in the volume") {
		t.Errorf("the lock of a file in it: exit status %d, %s", status, stderr)
	}
	n.Kill()
	for range 2 {
		if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: gone}); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(gone); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the target path is left: %v", err)
	}
	rename("away", "dir")
	rename("dir/away", "dir/sub")
	n.start()
	lab.Eventually(t, "the kubelet's path and the pod have the new view", func() bool {
		return lab.FSType(filepath.Join(part, "sub")) == unix.FUSE_SUPER_MAGIC && p.run("stat -f -c %t "+sub) == "65735546\n--- 0\n"
	})
	d.noWarnings()
}

// A directory is removed and made anew, by this node or by another. The kubelet asks again when it has
// restarted: what it then gets is the new one.
func TestCSIDirectoryMadeAnew(t *testing.T) {
	t.Parallel()
	n, d := viewed(t, "v")
	for name, at := range map[string]string{"here": n.view("v"), "elsewhere": n.source("v")} {
		dir := filepath.Join(at, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		r := &csi.NodePublishVolumeRequest{VolumeId: "default/v/" + name, Readonly: true}
		target := d.mustPublish(name, r)
		if err := errors.Join(os.Remove(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
		write(t, dir, "f", "new")
		lab.Eventually(t, "the new one made "+name+" is published", func() bool { // the kernel may know the name for a while
			d.mustPublish(name, r)
			b, err := os.ReadFile(filepath.Join(target, "f"))
			return string(b) == "new" && err == nil
		})
		d.mustPublish(name, r)
		if err := os.WriteFile(filepath.Join(target, "f"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			t.Errorf("a write to what was published read-only: %v", err)
		}
		if k := mountsAt(t, target); k != 1 {
			t.Errorf("%d mounts at the path", k)
		}
		d.mustUnpublish(target)
	}
}

// A frozen daemon holds up what needs its view, and nothing else: publishing fails in time, and
// unpublishing works.
func TestCSIWithAHungView(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v")
	d := n.driver()
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	target := d.mustPublish("a", &csi.NodePublishVolumeRequest{VolumeId: "default/v"})
	lab.Freeze(t, n.Cmd.Process.Pid)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	r := &csi.NodePublishVolumeRequest{VolumeId: "default/v", VolumeCapability: capability(), TargetPath: filepath.Join(d.kubelet, "b")}
	if _, err := d.NodePublishVolume(ctx, r); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("publish: %v", err)
	}
	lab.Eventually(t, "publishing again is refused: the first call is still under way", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := d.NodePublishVolume(ctx, r)
		return status.Code(err) == codes.Aborted
	})
	if _, err := d.NodeUnpublishVolume(context.Background(), &csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: target}); err != nil {
		t.Errorf("unpublish: %v", err)
	}
	if err := n.Cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "it is published when the view answers", func() bool {
		_, err := d.NodePublishVolume(context.Background(), r)
		return err == nil
	})
	t.Cleanup(func() { _ = mounts.Detach(r.TargetPath) })
}

func TestCSIClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v")
	d := n.driver("--controller")
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	ctx := context.Background()
	create := func(name string, parameters map[string]string) (*csi.CreateVolumeResponse, error) {
		return d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability()}, Parameters: parameters})
	}
	made, err := create("pvc-1", map[string]string{"volume": "v", "directory": "claims", "csi.storage.k8s.io/pvc/name": "c"})
	if err != nil {
		t.Fatal(err)
	}
	if made.Volume.VolumeId != "default/v/claims/pvc-1" {
		t.Errorf("its id is %s", made.Volume.VolumeId)
	}
	dir := filepath.Join(n.view("v"), "claims/pvc-1")
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o777 {
		t.Fatal(fi, err)
	}
	for _, parameters := range []map[string]string{nil, {"volume": "v", "mode": "9"}, {"volume": "v", "what": "x"}, {"volume": "v", "directory": "../.."}} {
		if _, err := create("pvc-2", parameters); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", parameters, err)
		}
	}
	// A program that may write to the volume does not lead the claims' directories elsewhere.
	if err := os.Mkdir(filepath.Join(n.view("v"), "secret"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("secret", filepath.Join(n.view("v"), "link")); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{"link", "link/x"} {
		if _, err := create("pvc-3", map[string]string{"volume": "v", "directory": directory}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", directory, err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(n.source("v"), "secret")); len(left) != 0 || err != nil {
		t.Errorf("made behind a symbolic link: %v, %v", left, err)
	}
	deep, err := create("pvc-4", map[string]string{"volume": "v", "directory": "x/y/z"})
	if err != nil || deep.Volume.VolumeId != "default/v/x/y/z/pvc-4" {
		t.Errorf("%v, %v", deep, err)
	}
	// A name that leads elsewhere is no path.
	odd, err := create("../../x", map[string]string{"volume": "v"})
	if err != nil || !strings.HasPrefix(odd.Volume.VolumeId, "default/v/claim-") {
		t.Errorf("%v, %v", odd, err)
	}
	f, err := lab.OpenFile(filepath.Join(dir, "f"), os.O_CREATE|os.O_WRONLY)
	if err != nil {
		t.Fatal(err)
	}
	id := made.Volume.VolumeId
	if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a directory in use: %v", err)
	}
	f.Close()
	if _, err := os.Stat(filepath.Join(dir, "f")); err != nil {
		t.Errorf("the refused removal has removed: %v", err)
	}
	lab.Eventually(t, "it is removed", func() bool { // the kernel tells of a close later
		_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
		if err != nil && status.Code(err) != codes.FailedPrecondition {
			t.Fatal(err)
		}
		return err == nil
	})
	if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the directory is left: %v", err)
	}
	// What was not made for a claim stays.
	if err := os.Mkdir(filepath.Join(n.source("v"), "own"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"default/v/own", "default/v/claims"} {
		if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("%s: %v", id, err)
		}
	}
	if _, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: "default/v"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(n.source("v"), "own")); err != nil {
		t.Error(err)
	}
}

// The kernel refuses to map the owners of a view's files. docs/adr/0058 says what has to be done before
// it may.
func TestNoViewInAUserNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.makeSources("v")
	n.list("v")
	n.start()
	lab.Eventually(t, "the view is there", func() bool { return lab.FSType(n.view("v")) == unix.FUSE_SUPER_MAGIC })
	users := exec.Command("sleep", "1000")
	users.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: 100000, Size: 65536}},
		GidMappings: []syscall.SysProcIDMap{{HostID: 100000, Size: 65536}},
	}
	if err := users.Start(); err != nil {
		t.Skip("no user namespaces here: ", err)
	}
	t.Cleanup(func() {
		_ = users.Process.Kill()
		_ = users.Wait()
	})
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", users.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	idmap := func(dir string) error {
		d, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		tree, err := mounts.Clone(d, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer tree.Close()
		return unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(ns.Fd())})
	}
	if err := idmap(n.source("v")); err != nil {
		t.Skip("the volume itself cannot be mapped: ", err)
	}
	if err := idmap(n.view("v")); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a view: %v, want EINVAL", err)
	}
}
