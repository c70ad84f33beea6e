package cluster

import "strings"

// handManifest is the test's hand on each node: it sees the node's processes,
// its shared directory and, from the outside, the views.
const handManifest = `
apiVersion: v1
kind: Namespace
metadata:
  name: lockfs-test
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: hand, namespace: lockfs-test}
spec:
  selector: {matchLabels: {app.kubernetes.io/name: hand}}
  template:
    metadata: {labels: {app.kubernetes.io/name: hand}}
    spec:
      hostPID: true
      terminationGracePeriodSeconds: 0
      tolerations: [{operator: Exists}]
      containers:
      - name: hand
        image: docker.io/library/busybox:1.37
        imagePullPolicy: IfNotPresent
        command: [sleep, "1000000"]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: srv, mountPath: /srv, mountPropagation: HostToContainer}
        - {name: views, mountPath: /var/lib/lockfs, mountPropagation: HostToContainer}
      volumes:
      - {name: srv, hostPath: {path: /srv}}
      - {name: views, hostPath: {path: /var/lib/lockfs, type: DirectoryOrCreate}}
`

// on runs a script on a node, as root.
func (c *cluster) on(node, script string) string {
	c.t.Helper()
	out, err := c.tryOn(node, script)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

func (c *cluster) tryOn(node, script string) (string, error) {
	c.t.Helper()
	return c.try("-n", ours, "exec", c.hands[node], "--", "sh", "-c", script)
}

// shared reads a file of the shared directory, round every view; "" if there is
// none.
func (c *cluster) shared(node, name string) string {
	c.t.Helper()
	return c.on(node, "cat /srv/shared/"+name+" 2>/dev/null || true")
}

// daemonPID is the lockfs daemon's on a node, as the node knows it; "" if none
// runs.
func (c *cluster) daemonPID(node string) string {
	c.t.Helper()
	// Neither the CSI driver nor the daemon's children.
	return strings.TrimSpace(c.on(node, `for p in $(pidof lockfs); do
	grep -q serve /proc/$p/cmdline || continue
	parent=$(awk '/^PPid:/ { print $2 }' /proc/$p/status)
	[ "$(cat /proc/$parent/comm)" = lockfs ] || echo $p
done`))
}
