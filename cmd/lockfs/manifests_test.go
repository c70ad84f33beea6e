package main

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/lockfs/lockfs/internal/config"
	"github.com/lockfs/lockfs/internal/serve"
)

// object is what the tests look at of the manifests' objects.
type object struct {
	Kind  string
	Rules []struct{ Resources, ResourceNames, Verbs []string }
	Spec  struct {
		Template struct {
			Metadata struct{ Annotations map[string]string }
			Spec     podSpec
		}
		HostPath hostPath
	}
}

type hostPath struct{ Path, Type string }

type podSpec struct {
	TerminationGracePeriodSeconds int
	InitContainers, Containers    []container
	Volumes                       []podVolume
	Tolerations                   []map[string]string
}

type podVolume struct {
	Name     string
	HostPath hostPath
}

type container struct {
	Args           []string
	Env            []struct{ Name, Value string }
	Ports          []struct{ ContainerPort int }
	LivenessProbe  struct{ HTTPGet struct{ Path string } }
	ReadinessProbe struct{ HTTPGet struct{ Path string } }
	VolumeMounts   []volumeMount
}

type volumeMount struct{ Name, MountPath, SubPath, MountPropagation string }

// manifests reads the objects of a file.
func manifests(t *testing.T, file string) []object {
	t.Helper()
	var all []object
	d := yaml.NewDecoder(strings.NewReader(read(t, file)))
	for {
		var doc any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return all
		}
		// By way of JSON, which does not mind the case of names.
		b, jsonErr := json.Marshal(doc)
		var o object
		if err := errors.Join(err, jsonErr, json.Unmarshal(b, &o)); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, o)
	}
}

const daemonSet = "deploy/daemonset/base/daemonset.yaml"

// daemon returns the DaemonSet's pod and the command that it runs, with the flags
// that its arguments and its environment give.
func daemon(t *testing.T) (podSpec, *cobra.Command) {
	t.Helper()
	pod := manifests(t, daemonSet)[0].Spec.Template.Spec
	args := pod.Containers[0].Args
	cmd, rest, err := newRoot().Find(args)
	if err != nil || cmd.Name() != args[0] {
		t.Fatalf("the DaemonSet runs %q, which is no command: %v", args, err)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		t.Fatalf("the DaemonSet's flags: %v", err)
	}
	for _, e := range pod.Containers[0].Env {
		name, ours := strings.CutPrefix(e.Name, "LOCKFS_")
		if !ours {
			continue
		}
		name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		if flags()[name] == nil {
			t.Errorf("$%s is the twin of no flag", e.Name)
		}
		if f := cmd.Flag(name); f != nil && f.Changed {
			t.Errorf("$%s is given, and --%s too", e.Name, name)
		}
		t.Setenv(e.Name, e.Value)
	}
	if err := cmd.PreRunE(cmd, nil); err != nil {
		t.Fatalf("the DaemonSet's environment: %v", err)
	}
	return pod, cmd
}

func flagOf(cmd *cobra.Command, name string) string { return cmd.Flag(name).Value.String() }

// What the DaemonSet asks of the program is there.
func TestDaemonSetAgreesWithTheProgram(t *testing.T) {
	pod, cmd := daemon(t)
	c := pod.Containers[0]
	_, port, err := net.SplitHostPort(flagOf(cmd, "http"))
	if err != nil {
		t.Fatal(err)
	}
	annotations := manifests(t, daemonSet)[0].Spec.Template.Metadata.Annotations
	if annotations["prometheus.io/port"] != port || strconv.Itoa(c.Ports[0].ContainerPort) != port {
		t.Errorf("it listens on %s, and other ports are named", port)
	}
	mux := serve.NewMux(func() []serve.Check { return nil })
	for _, p := range []string{c.LivenessProbe.HTTPGet.Path, c.ReadinessProbe.HTTPGet.Path} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, p, nil))
		if w.Code != http.StatusOK {
			t.Errorf("probe %q gets status %d", p, w.Code)
		}
	}
	mounted := func(dir, propagation string) bool {
		return slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool {
			return (dir == m.MountPath || strings.HasPrefix(dir, m.MountPath+"/")) && m.MountPropagation == propagation
		})
	}
	for _, dir := range []string{path.Dir(flagOf(cmd, "config")), flagOf(cmd, "state-dir")} {
		if !mounted(dir, "") {
			t.Errorf("%s is no volume", dir)
		}
	}
	for _, overlay := range []string{"etcd", "kubernetes"} {
		for _, v := range volumes(t, overlay) {
			if !mounted(v.Source, "HostToContainer") || !mounted(v.Mountpoint, "Bidirectional") {
				t.Errorf("%s: %s or %s is not where the pod's volumes are", v.ID(), v.Source, v.Mountpoint)
			}
			// Writes finish, then locks are let go, each within a TTL.
			if grace := time.Duration(pod.TerminationGracePeriodSeconds) * time.Second; grace < 2*v.TTL+10*time.Second {
				t.Errorf("%s may take two TTLs of %v to end, the pod has %v", v.ID(), v.TTL, grace)
			}
		}
	}
}

// volumes reads an overlay's lockfs.yaml.
func volumes(t *testing.T, overlay string) []config.Volume {
	t.Helper()
	name := filepath.Join("deploy/daemonset/overlays", overlay, "lockfs.yaml")
	f, err := config.Parse(name, []byte(read(t, name)))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Volumes) < 2 {
		t.Errorf("%s shows %d volume", name, len(f.Volumes))
	}
	return f.Volumes
}

// Each overlay keeps locks where its name says, with credentials that are there.
func TestOverlays(t *testing.T) {
	_, cmd := daemon(t)
	credentials := manifests(t, "deploy/daemonset/overlays/etcd/credentials.yaml")[0].Spec.Template.Spec.Containers[0]
	for _, overlay := range []string{"etcd", "kubernetes"} {
		for _, v := range volumes(t, overlay) {
			if v.Backend != overlay {
				t.Errorf("overlay %s: %s has backend %s", overlay, v.ID(), v.Backend)
			}
			dir := path.Join(flagOf(cmd, "credentials-dir"), v.Credentials)
			if v.Credentials != "" && !slices.ContainsFunc(credentials.VolumeMounts, func(m volumeMount) bool { return m.MountPath == dir }) {
				t.Errorf("overlay %s: %s needs %s, which is not mounted", overlay, v.ID(), dir)
			}
		}
	}
}

// The examples do what CONFIG.md asks of workloads.
func TestExamplesMountTheDirectoryAbove(t *testing.T) {
	above := path.Dir(volumes(t, "etcd")[0].Mountpoint)
	if pv := manifests(t, "deploy/daemonset/examples/volume.yaml")[0]; pv.Spec.HostPath != (hostPath{Path: above, Type: "Directory"}) {
		t.Errorf("the volume is %+v, want the Directory %s", pv.Spec.HostPath, above)
	}
	for _, file := range []string{"writer-a.yaml", "writer-b.yaml"} {
		pod := manifests(t, "deploy/daemonset/examples/"+file)[0].Spec.Template.Spec
		for _, c := range append(pod.InitContainers, pod.Containers...) {
			for _, m := range c.VolumeMounts {
				if m.SubPath != "" || m.MountPropagation != "HostToContainer" {
					t.Errorf("%s mounts %+v, want HostToContainer and no subPath", file, m)
				}
			}
		}
	}
}

// What the CSI driver's manifests ask of the program is there.
func TestCSIManifests(t *testing.T) {
	daemon, _ := daemon(t)
	node := manifests(t, "deploy/csi/node.yaml")[0].Spec.Template.Spec
	var controller podSpec
	for _, o := range manifests(t, "deploy/csi/controller.yaml") {
		if o.Kind == "Deployment" {
			controller = o.Spec.Template.Spec
		}
	}
	for _, pod := range []podSpec{node, controller} {
		c := pod.Containers[0]
		cmd, rest, err := newRoot().Find(c.Args)
		if err != nil || cmd.Name() != "csi" {
			t.Fatalf("it runs %q: %v", c.Args, err)
		}
		if err := cmd.ParseFlags(rest); err != nil {
			t.Fatal(err)
		}
		for _, e := range c.Env {
			if e.Name == "LOCKFS_CONFIG" {
				t.Setenv(e.Name, e.Value)
			}
		}
		if err := cmd.PreRunE(cmd, nil); err != nil {
			t.Fatal(err)
		}
		mounted := func(dir, propagation string) bool {
			return slices.ContainsFunc(c.VolumeMounts, func(m volumeMount) bool {
				return (dir == m.MountPath || strings.HasPrefix(dir, m.MountPath+"/")) && m.MountPropagation == propagation
			})
		}
		socket := strings.TrimPrefix(flagOf(cmd, "endpoint"), "unix://")
		if !mounted(path.Dir(socket), "") || !mounted(path.Dir(flagOf(cmd, "config")), "") {
			t.Errorf("%s or %s is no volume", socket, flagOf(cmd, "config"))
		}
		for _, v := range volumes(t, "etcd") {
			if !mounted(v.Mountpoint, "HostToContainer") {
				t.Errorf("%s is not where the pod's volumes are", v.Mountpoint)
			}
		}
		if flagOf(cmd, "controller") == "false" && !mounted(flagOf(cmd, "kubelet-dir"), "Bidirectional") {
			t.Errorf("%s is no volume that others see", flagOf(cmd, "kubelet-dir"))
		}
		for _, side := range pod.Containers[1:] {
			if !slices.Contains(side.Args, "--csi-address="+socket) {
				t.Errorf("a sidecar has %q, the socket is %s", side.Args, socket)
			}
		}
	}
	for _, v := range node.Volumes { // where the kubelet is told that the socket is
		if v.Name == "csi" && !slices.Contains(node.Containers[1].Args, "--kubelet-registration-path="+v.HostPath.Path+"/csi.sock") {
			t.Errorf("the registrar has %q, the socket is in %s", node.Containers[1].Args, v.HostPath.Path)
		}
	}
	if !reflect.DeepEqual(node.Tolerations, daemon.Tolerations) {
		t.Errorf("the driver tolerates %v, the daemon %v: a node has both or none", node.Tolerations, daemon.Tolerations)
	}
}

// The controller of the CSI driver can change its own two Leases, and no locks, which may be beside them.
func TestLeasesOfTheController(t *testing.T) {
	own := regexp.MustCompile(`delete lease (\S+) (\S+)`).FindStringSubmatch(read(t, "docs/CSI.md"))
	if own == nil {
		t.Fatal("docs/CSI.md names no Leases")
	}
	roles := 0
	for _, o := range manifests(t, "deploy/csi/controller.yaml") {
		if o.Kind != "Role" {
			continue
		}
		roles++
		for _, r := range o.Rules {
			if !slices.Equal(r.Verbs, []string{"create"}) && !slices.Equal(r.ResourceNames, own[1:]) {
				t.Errorf("it may %v %v of the names %v, its own are %v", r.Verbs, r.Resources, r.ResourceNames, own[1:])
			}
		}
	}
	if roles != 1 {
		t.Errorf("%d Roles", roles)
	}
}

// The manifests, the chart and 'make image' name one version of the image, and every other image has a tag
// that stays what it is.
func TestVersions(t *testing.T) {
	var files []string
	err := filepath.WalkDir(filepath.Join(root, "deploy"), func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(file, ".yaml") && !strings.Contains(file, "/templates/") {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`ghcr.io/lockfs/lockfs:(\S+)\n`).FindStringSubmatch(read(t, "Makefile"))
	if version == nil {
		t.Fatal("the Makefile names no version")
	}
	if !strings.Contains(read(t, "deploy/helm/lockfs/Chart.yaml"), "\nappVersion: "+version[1]+"\n") {
		t.Errorf("the chart has another version than %s", version[1])
	}
	image := regexp.MustCompile(`(?m)^ *(?:- )?image: (\S+)$`)
	n := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range image.FindAllSubmatch(text, -1) {
			if string(m[1]) == "null" { // the chart: what the manifest says
				continue
			}
			n++
			name, tag, _ := strings.Cut(string(m[1]), ":")
			if tag == "" || tag == "latest" || name == "ghcr.io/lockfs/lockfs" && tag != version[1] {
				t.Errorf("%s has the image %s", file, m[1])
			}
		}
	}
	if n < 10 {
		t.Errorf("found %d images", n)
	}
}

// The Job that cleans a node up sees what the DaemonSet has made there, and unmounts
// for the node.
func TestCleanupManifest(t *testing.T) {
	job := manifests(t, "deploy/daemonset/cleanup.yaml")[0].Spec.Template.Spec
	daemon, _ := daemon(t)
	if cmd, rest, err := newRoot().Find(job.Containers[0].Args); err != nil || cmd.Name() != "cleanup" || len(rest) != 0 {
		t.Errorf("it runs %q: %v", job.Containers[0].Args, err)
	}
	for _, dir := range cleaned {
		same := func(m volumeMount) bool { return m.MountPath == dir }
		i := slices.IndexFunc(job.Containers[0].VolumeMounts, same)
		j := slices.IndexFunc(daemon.Containers[0].VolumeMounts, same)
		if i < 0 || j < 0 || job.Containers[0].VolumeMounts[i] != daemon.Containers[0].VolumeMounts[j] {
			t.Errorf("%s is not there as the daemon has it", dir)
		}
		for _, v := range job.Volumes {
			if v.Name == job.Containers[0].VolumeMounts[i].Name && v.HostPath.Path != dir {
				t.Errorf("%s is %s of the node", dir, v.HostPath.Path)
			}
		}
	}
}
