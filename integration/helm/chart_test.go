// Package helm tests the chart deploy/helm/lockfs with helm itself, and compares it with what kustomize makes. It is a
// module of its own: helm needs much that lockfs does not.
package helm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// program is helm: $LOCKFS_TEST_HELM, or the one that go.mod names.
var program = sync.OnceValues(func() (string, error) {
	if name := os.Getenv("LOCKFS_TEST_HELM"); name != "" {
		return name, nil
	}
	out, err := exec.Command("go", "tool", "-n", "helm").CombinedOutput() // builds it, into the cache
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return strings.TrimSpace(string(out)), nil
})

// helm runs helm on the chart with values.
func helm(t *testing.T, values string, args ...string) (string, error) {
	t.Helper()
	name, err := program()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "values.yaml")
	if err := os.WriteFile(file, []byte(values), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, append(args, "-f", file)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("helm %v: %w: %s%s", args, err, &out, &complaint)
	}
	return out.String(), nil
}

const chart = root + "/deploy/helm/lockfs"

func template(t *testing.T, values string) (string, error) {
	t.Helper()
	return helm(t, values, "template", "lockfs", chart, "--namespace", "lockfs-system", "--skip-tests", "--kube-version", "v1.36.0")
}

func mustTemplate(t *testing.T, values string) string {
	t.Helper()
	out, err := template(t, values)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// objects are those of a stream, by kind, namespace and name.
func objects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := make(map[string]map[string]any)
	d := yamlv3.NewDecoder(strings.NewReader(text))
	for {
		var o map[string]any
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if o == nil || o["kind"] == "Namespace" {
			continue
		}
		meta := o["metadata"].(map[string]any)
		labels, _ := meta["labels"].(map[string]any)
		for _, name := range []string{"helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/instance"} {
			delete(labels, name)
		}
		if len(labels) == 0 {
			delete(meta, "labels")
		}
		if data, ok := o["data"].(map[string]any); ok && data["lockfs.yaml"] != nil { // without its comments
			var file any
			if err := yaml.Unmarshal([]byte(data["lockfs.yaml"].(string)), &file); err != nil {
				t.Fatal(err)
			}
			data["lockfs.yaml"] = file
		}
		key := fmt.Sprint(o["kind"], " ", meta["namespace"], "/", meta["name"])
		if all[key] != nil {
			t.Errorf("%s is there twice", key)
		}
		all[key] = o
	}
}

func kustomize(t *testing.T, dir string) string {
	t.Helper()
	made, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	text, err := made.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// volumesOf makes values of an overlay's lockfs.yaml.
func volumesOf(t *testing.T, overlay string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "deploy/daemonset/overlays", overlay, "lockfs.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The manifests are what is true; the chart makes the same of them.
func TestSameAsKustomize(t *testing.T) {
	credentials := "credentials: {default: lockfs-etcd-default, team-a: lockfs-etcd-team-a}\n"
	for _, c := range []struct {
		overlays []string
		values   string
	}{
		{[]string{"deploy/daemonset/overlays/kubernetes"}, volumesOf(t, "kubernetes") + "csi: {enabled: false}"},
		{[]string{"deploy/daemonset/overlays/kubernetes-csi"}, volumesOf(t, "kubernetes")},
		{[]string{"deploy/daemonset/overlays/etcd"}, volumesOf(t, "etcd") + credentials + "csi: {enabled: false}"},
		{[]string{"deploy/daemonset/overlays/etcd-csi", "deploy/etcd"}, volumesOf(t, "etcd") + credentials + "etcd: {enabled: true}"},
		{[]string{"deploy/daemonset/overlays/kubernetes-csi", "deploy/monitoring"},
			volumesOf(t, "kubernetes") + "monitoring: {podMonitor: true, prometheusRule: true, dashboard: true}"},
	} {
		want := make(map[string]map[string]any)
		for _, dir := range c.overlays {
			for key, o := range objects(t, kustomize(t, dir)) {
				want[key] = o
			}
		}
		got := objects(t, mustTemplate(t, c.values))
		for key, o := range got {
			sortByName(o)
			if want[key] == nil {
				t.Errorf("%v: only the chart makes %s", c.overlays, key)
				continue
			}
			sortByName(want[key])
			if !reflect.DeepEqual(o, want[key]) {
				a, _ := yaml.Marshal(o)
				b, _ := yaml.Marshal(want[key])
				t.Errorf("%v: %s of the chart:\n%s\nof kustomize:\n%s", c.overlays, key, a, b)
			}
		}
		for key := range want {
			if got[key] == nil {
				t.Errorf("%v: the chart lacks %s", c.overlays, key)
			}
		}
	}
}

// sortByName makes lists alike whose order says nothing: of containers, volumes and mounts.
func sortByName(v any) {
	switch v := v.(type) {
	case map[string]any:
		for _, e := range v {
			sortByName(e)
		}
	case []any:
		name := func(e any) string {
			m, _ := e.(map[string]any)
			return fmt.Sprint(m["name"], m["mountPath"])
		}
		if len(v) > 0 && name(v[0]) != "<nil><nil>" {
			slices.SortStableFunc(v, func(a, b any) int { return strings.Compare(name(a), name(b)) })
		}
		for _, e := range v {
			sortByName(e)
		}
	}
}

func TestLint(t *testing.T) {
	out, err := helm(t, volumesOf(t, "kubernetes"), "lint", "--strict", chart)
	if err != nil {
		t.Error(err)
	}
	t.Log(out)
}

// cases give each value once, with what it makes. A value with a dot in its name is below another. The
// CSI controller, the only Deployment, runs where daemons run.
var cases = []struct{ name, values, makes string }{
	{"volumes", "volumes: [{name: v, source: /srv/v, mountpoint: /var/lib/lockfs/v/view, backend: kubernetes, namespace: team}]", `(?s)mountpoint: /var/lib/lockfs/v/view.*name: lockfs-leases\s+namespace: team\n`},
	{"credentials", "credentials: {c: s}", `(?s)mountPath: /etc/lockfs/credentials/c\n.*secretName: s\n`},
	{"image.repository", "image: {repository: r/i}", `image: r/i:v`},
	{"image.tag", "image: {tag: t}", `image: ghcr.io/lockfs/lockfs:t\n`},
	{"image.pullPolicy", "image: {pullPolicy: Always}", `(?s)image: ghcr.io/lockfs/lockfs:\S+\s+imagePullPolicy: Always`},
	{"imagePullSecrets", "imagePullSecrets: [{name: s}]", `imagePullSecrets:\s+- name: s\n`},
	{"extraLabels", "extraLabels: {a: b}", `(?s)labels:\s+a: b\n.*template:\s+metadata:.{0,200}labels:\s+a: b\n`},
	{"directories.sources", "directories: {sources: [/a, /b]}", `(?s)mountPath: /a\n.*mountPath: /b\n.*path: /a\n.*path: /b\n`},
	{"directories.views", "directories: {views: /v}", `(?s)mountPath: /v\n.*path: /v\n`},
	{"directories.state", "directories: {state: /s}", `(?s)name: LOCKFS_STATE_DIR\s+value: /s\n.*mountPath: /s\n.*path: /s\n`},
	{"directories.kubelet", "directories: {kubelet: /k}", `(?s)--kubelet-dir=/k\n.*--kubelet-registration-path=/k/plugins/lockfs.io/csi.sock\n.*path: /k/plugins_registry\n`},
	{"daemon.logLevel", "daemon: {logLevel: debug}", `--log-level=debug`},
	{"daemon.podNames", "daemon: {podNames: false}", `(?s)--node=\$\(NODE_NAME\)\s+- --log-format=json\n`},
	{"daemon.supervise", "daemon: {supervise: false}", `(?s)LOCKFS_CREDENTIALS_DIR\s+value: \S+\s+- name: GOMEMLIMIT`},
	{"daemon.updateStrategy", "daemon: {updateStrategy: {type: OnDelete}}", `type: OnDelete`},
	{"daemon.extraArgs", "daemon: {extraArgs: [--slow-wait=1m]}", `--slow-wait=1m`},
	{"daemon.resources", "daemon: {resources: {limits: {memory: 3Mi}}}", `memory: 3Mi`},
	{"daemon.resources", "daemon: {resources: {}}", `resources: {}\n`},
	{"daemon.nodeSelector", "daemon: {nodeSelector: {a: b}}", `(?s)kind: Deployment\n.*nodeSelector:\s+a: b`},
	{"daemon.affinity", "daemon: {affinity: {nodeAffinity: {}}}", `(?s)kind: Deployment\n.*affinity:\s+nodeAffinity: {}`},
	{"daemon.tolerations", "daemon: {tolerations: [{operator: Exists}]}", `(?s)kind: Deployment\n.*tolerations:\s+- operator: Exists\n`},
	{"daemon.priorityClassName", "daemon: {priorityClassName: p}", `priorityClassName: p\n`},
	{"daemon.podAnnotations", "daemon: {podAnnotations: {a: b}}", `annotations:\s+a: b\n`},
	{"daemon.terminationGracePeriodSeconds", "daemon: {terminationGracePeriodSeconds: 99}", `terminationGracePeriodSeconds: 99`},
	{"csi.enabled", "csi: {enabled: false}", `(?s)kind: DaemonSet`},
	{"csi.inlineVolumes", "csi: {inlineVolumes: true}", `--inline-volumes`},
	{"csi.resources", "csi: {resources: {limits: {memory: 3Mi}}}", `memory: 3Mi`},
	{"csi.resources", "csi: {resources: {}}", `resources: {}\n`},
	{"csi.registrar.image", "csi: {registrar: {image: r/i:1}}", `image: r/i:1`},
	{"csi.livenessProbe.image", "csi: {livenessProbe: {image: r/i:1}}", `image: r/i:1`},
	{"csi.provisioner.image", "csi: {provisioner: {image: r/i:1}}", `image: r/i:1`},
	{"csi.resizer.image", "csi: {resizer: {image: r/i:1}}", `image: r/i:1`},
	{"csi.controller.replicas", "csi: {controller: {replicas: 2}}", `replicas: 2`},
	{"csi.controller.resources", "csi: {controller: {resources: {limits: {memory: 3Mi}}}}", `memory: 3Mi`},
	{"csi.controller.resources", "csi: {controller: {resources: {}}}", `resources: {}\n`},
	{"csi.controller.nodeSelector", "csi: {controller: {nodeSelector: {a: b}}}", `nodeSelector:\s+a: b`},
	{"csi.controller.affinity", "csi: {controller: {affinity: {nodeAffinity: {}}}}", `affinity:\s+nodeAffinity: {}`},
	{"csi.controller.tolerations", "csi: {controller: {tolerations: [{operator: Exists}]}}", `tolerations:\s+- operator: Exists\n`},
	{"csi.controller.priorityClassName", "csi: {controller: {priorityClassName: p}}", `priorityClassName: p\n`},
	{"csi.storageClasses", "csi: {storageClasses: [{name: s, default: true, mountOptions: [wait=2m], parameters: {volume: v}}]}", `(?s)is-default-class: "true"\n.*name: s\n.*wait=2m\n.*volume: v\n.*reclaimPolicy: Delete`},
	{"etcd.enabled", "etcd: {enabled: true}", `(?s)kind: StatefulSet`},
	{"etcd.namespace", "etcd: {enabled: true, namespace: ns}", `(?s)etcd-0.etcd.ns.svc:2379.*namespace: ns\n|namespace: ns\n.*etcd-0.etcd.ns.svc:2379`},
	{"etcd.image", "etcd: {enabled: true, image: r/e:1}", `image: r/e:1`},
	{"etcd.storage", "etcd: {enabled: true, storage: 3Gi}", `storage: 3Gi`},
	{"etcd.storageClassName", "etcd: {enabled: true, storageClassName: s}", `storageClassName: s\n`},
	{"etcd.resources", "etcd: {enabled: true, resources: {limits: {memory: 3Mi}}}", `memory: 3Mi`},
	{"etcd.resources", "etcd: {enabled: true, resources: {}}", `resources: {}\n`},
	{"monitoring.podMonitor", "monitoring: {podMonitor: true}", `kind: PodMonitor`},
	{"monitoring.serviceMonitor", "monitoring: {serviceMonitor: true}", `(?s)kind: Service\n.*kind: ServiceMonitor\n`},
	{"monitoring.prometheusRule", "monitoring: {prometheusRule: true}", `kind: PrometheusRule`},
	{"monitoring.dashboard", "monitoring: {dashboard: true}", `grafana_dashboard: "1"`},
	{"monitoring.labels", "monitoring: {podMonitor: true, labels: {a: b}}", `labels:\s+a: b\n`},
	{"networkPolicy.enabled", "networkPolicy: {enabled: true}", `(?s)kind: NetworkPolicy\n.*port: 9808`},
	{"networkPolicy.metricsFrom", "networkPolicy: {enabled: true, metricsFrom: [{podSelector: {matchLabels: {a: b}}}]}", `a: b\n`},
	{"networkPolicy.etcdFrom", "etcd: {enabled: true}\nnetworkPolicy: {enabled: true, etcdFrom: [{podSelector: {matchLabels: {a: b}}}]}", `a: b\n`},
	{"podDisruptionBudget", "podDisruptionBudget: false\ncsi: {controller: {replicas: 2}}", `replicas: 2`},
}

// Each value of values.yaml does something, and no other is taken.
func TestEachValue(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var names []string
	var collect func(prefix string, v map[string]any)
	collect = func(prefix string, v map[string]any) {
		for name, below := range v {
			if m, ok := below.(map[string]any); ok && len(m) > 0 {
				collect(prefix+name+".", m)
			} else {
				names = append(names, prefix+name)
			}
		}
	}
	collect("", values)
	plain := mustTemplate(t, "{}")
	for _, c := range cases {
		if !slices.Contains(names, c.name) {
			t.Errorf("values.yaml has no %s", c.name)
		}
		out := mustTemplate(t, c.values)
		objects(t, out)
		if out == plain {
			t.Errorf("%s changes nothing", c.name)
		}
		if !regexp.MustCompile(c.makes).MatchString(out) {
			t.Errorf("%s does not make %q:\n%s", c.values, c.makes, out)
		}
		top, _, _ := strings.Cut(c.name, ".")
		wrong := "{" + top + "x: 1}"
		if below, ok := values[top].(map[string]any); ok && len(below) > 0 {
			wrong = "{" + top + ": {no-such: 1}}"
		}
		if _, err := template(t, wrong); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(cases, func(c struct{ name, values, makes string }) bool { return c.name == name }) {
			t.Errorf("no case for %s", name)
		}
	}
	for values, kind := range map[string]string{
		"csi: {enabled: false}":      "CSIDriver",
		"daemon: {podNames: false}":  "kind: ClusterRole\nmetadata:\n  labels:\n    app.kubernetes.io/instance: lockfs\n    app.kubernetes.io/managed-by: Helm\n    helm.sh/chart: lockfs-0.1.0\n  name: lockfs\n",
		"podDisruptionBudget: false": "PodDisruptionBudget",
	} {
		if strings.Contains(mustTemplate(t, values), kind) {
			t.Errorf("%s makes %s", values, kind)
		}
	}
}
