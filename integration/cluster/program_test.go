package cluster

import (
	"encoding/json"
	"fmt"
	"strings"
)

// program is a pod with an ordinary program, without any rights, that has the
// volume at /data/view.
type program struct {
	c    *cluster
	name string
	node string
}

const programManifest = `
apiVersion: v1
kind: Pod
metadata:
  name: %s
  namespace: lockfs-test
  labels: {lockfs-test/program: ""}
spec:
  nodeName: %s
  restartPolicy: %s
  terminationGracePeriodSeconds: 0
  automountServiceAccountToken: false
  tolerations: [{operator: Exists}]
  securityContext: {runAsNonRoot: true, runAsUser: 1000, runAsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: program
    image: docker.io/library/busybox:1.37
    imagePullPolicy: IfNotPresent
    command: [sh, -c, %s]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts:
    - {name: shared, mountPath: /data, mountPropagation: HostToContainer}
  volumes:
  - {name: shared, hostPath: {path: %s, type: Directory}}
`

// start starts a script on a node. It is removed at the end of the test.
func (c *cluster) start(name, node, script string) *program {
	c.t.Helper()
	return c.startIn("/var/lib/lockfs/shared", "Never", name, node, script)
}

func (c *cluster) startIn(dir, restart, name, node, script string) *program {
	c.t.Helper()
	quoted, err := json.Marshal(script)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &program{c: c, name: name, node: node}
	c.apply(fmt.Sprintf(programManifest, name, node, restart, quoted, dir))
	c.t.Cleanup(func() {
		if !c.t.Failed() { // else the report wants it
			_, _ = c.try("-n", ours, "delete", "pod", name, "--force", "--grace-period=0", "--wait=false", "--ignore-not-found")
		}
	})
	return p
}

// status is what the kubelet says of it.
type status struct {
	Phase             string
	ContainerStatuses []struct {
		RestartCount int
		State        struct {
			Waiting    *struct{ Reason string }
			Terminated *struct{ ExitCode int }
		}
	}
}

func (p *program) status() status {
	p.c.t.Helper()
	var pod struct{ Status status }
	p.c.get(&pod, "-n", ours, "pod", p.name)
	return pod.Status
}

// wait waits for its end, which must be a good one.
func (p *program) wait() {
	p.c.t.Helper()
	var phase string
	p.c.eventually(p.name+" ends", func() bool {
		phase = p.status().Phase
		return phase == "Succeeded" || phase == "Failed"
	})
	if phase != "Succeeded" {
		p.c.t.Fatalf("%s failed:\n%s", p.name, p.log())
	}
}

// log is what it has printed; "" while it has not started, or its node is away.
func (p *program) log() string {
	out, _ := p.c.try("-n", ours, "logs", p.name)
	return out
}

// says waits until it has printed something.
func (p *program) says(what string) {
	p.c.t.Helper()
	p.c.eventually(p.name+" says "+what, func() bool { return strings.Contains(p.log(), what) })
}

// hasEvent waits until 'kubectl describe' says something of its pod.
func (p *program) hasEvent(reason string) {
	p.c.t.Helper()
	p.c.eventually("an event "+reason+" on "+p.name, func() bool {
		return p.c.kubectl("-n", ours, "get", "events", "-o", "name", "--field-selector", "involvedObject.name="+p.name+",reason="+reason) != ""
	})
}
