package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHelm follows docs/how-to/helm.md: the chart is installed, upgraded, rolled back and removed under
// programs that run, and leaves nothing but the shared files.
func TestHelm(t *testing.T) { testHelm(t, inLeases, "helm") }

// TestHelmWithEtcd is the same with the chart's own etcd.
func TestHelmWithEtcd(t *testing.T) { testHelm(t, inEtcd, "helm-etcd") }

func testHelm(t *testing.T, overlay, install string) {
	if os.Getenv(envExtent) != extentFull {
		t.Skipf("set %s=%s, or run make cluster-test", envExtent, extentFull)
	}
	if os.Getenv(envKubeconfig) == "" {
		t.Parallel()
	}
	c := newCluster(t, 2).serving(overlay)
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
	})
	if _, err := os.Stat(filepath.Join(filepath.SplitList(c.path)[0], "helm")); err != nil {
		t.Skip("needs helm")
	}
	image := ""
	if name := os.Getenv(envImage); name != "" {
		colon := strings.LastIndex(name, ":")
		image = " --set image.repository=" + name[:colon] + ",image.tag=" + name[colon+1:]
	}
	c.t.Log(c.sh("cd " + t.TempDir() + "; ln -s " + filepath.Join(repository, "deploy") + ` .
` + strings.Replace(c.documented("docs/how-to/helm.md", install), "-f lockfs-values.yaml", "-f lockfs-values.yaml"+image, 1)))
	c.daemonsReady()
	c.t.Log(c.sh(c.tutorial("programs")))
	c.turnsGoOn("with what Helm has installed")
	c.claims()
	check := c.undisturbed()
	args := func() string {
		return c.kubectl("-n", system, "get", "daemonset", "lockfs", "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	}
	c.sh("helm upgrade lockfs deploy/helm/lockfs -n lockfs-system --reuse-values --set daemon.logLevel=debug")
	c.daemonsReady()
	if !strings.Contains(args(), "--log-level=debug") {
		t.Errorf("the upgrade made %s", args())
	}
	c.turnsGoOn("after an upgrade")
	c.sh("helm rollback lockfs -n lockfs-system")
	c.daemonsReady()
	if strings.Contains(args(), "--log-level=debug") {
		t.Errorf("the rollback made %s", args())
	}
	c.turnsGoOn("after a rollback")
	check()

	c.kubectl("delete", "-k", "deploy/daemonset/examples")
	was := c.shared(c.nodes[0], "log")
	c.t.Log(c.sh(c.documented("docs/how-to/helm.md", "helm-uninstall")))
	for _, node := range c.nodes {
		if left := c.on(node, "grep ' /var/lib/.* fuse.lockfs ' /proc/1/mountinfo || true"); left != "" {
			t.Errorf("views are left on %s:\n%s", node, left)
		}
	}
	left := c.kubectl("get", "daemonsets,deployments,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings,csidrivers,storageclasses,leases", "-A", "-o", "name")
	for name := range strings.Lines(left) {
		if strings.Contains(name, "lockfs") {
			t.Errorf("what is left: %s", name)
		}
	}
	if now := c.shared(c.nodes[0], "log"); now != was || was == "" {
		t.Errorf("the shared file had %d bytes, and has %d", len(was), len(now))
	}
}

const claimManifest = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: own, namespace: lockfs-test}
spec:
  accessModes: [ReadWriteMany]
  storageClassName: lockfs
  resources: {requests: {storage: 1Gi}}
---
apiVersion: v1
kind: Pod
metadata: {name: claims, namespace: lockfs-test}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  containers:
  - name: program
    image: docker.io/library/busybox:1.37
    imagePullPolicy: IfNotPresent
    command: [sh, -c, echo claimed >/own/file]
    volumeMounts:
    - {name: own, mountPath: /own}
  volumes:
  - name: own
    persistentVolumeClaim: {claimName: own}
`

// claims has the chart's StorageClass make a directory for a claim, which a pod writes to, and remove it.
func (c *cluster) claims() {
	c.t.Helper()
	node := c.nodes[0]
	c.apply(claimManifest)
	(&program{c: c, name: "claims"}).wait()
	if got := c.on(node, "cat /srv/shared/claims/pvc-*/file"); got != "claimed\n" {
		c.t.Errorf("the claim's directory has %q", got)
	}
	c.kubectl("-n", ours, "delete", "pod/claims", "pvc/own")
	c.eventually("the claim's directory is removed", func() bool { return strings.TrimSpace(c.on(node, "ls /srv/shared/claims")) == "" })
}
