package pods

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lockfs/lockfs/internal/procid"
)

// byUID is an index by the UIDs that cgroups have.
const byUID = "uid"

// mirrorAnnotation, on the API's copy of a static pod, has the hash that the kubelet uses
// as its UID.
const mirrorAnnotation = "kubernetes.io/config.mirror"

func uids(obj any) ([]string, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, nil
	}
	list := []string{string(p.UID)}
	if hash := p.Annotations[mirrorAnnotation]; hash != "" {
		list = append(list, hash)
	}
	return list, nil
}

func strip(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	s := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
	}}
	if hash := p.Annotations[mirrorAnnotation]; hash != "" {
		s.Annotations = map[string]string{mirrorAnnotation: hash}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for _, c := range list {
			s.Status.ContainerStatuses = append(s.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name, ContainerID: c.ContainerID})
		}
	}
	return s, nil
}

// Name returns a caller's pod as namespace/name, and its container; "" if unknown, and for a nil
// Pods. Of a pod in a pod it is the one that this cluster knows.
func (p *Pods) Name(caller procid.Caller) (name, container string) {
	if p == nil || caller.Pod == "" {
		return "", ""
	}
	pod := p.find(caller.Pod)
	if pod == nil {
		return "", ""
	}
	name = pod.Namespace + "/" + pod.Name
	for _, c := range pod.Status.ContainerStatuses {
		// containerd://<id>
		if _, id, ok := strings.Cut(c.ContainerID, "://"); ok && id == caller.Container && id != "" {
			return name, c.Name
		}
	}
	// The container has just started.
	return name, p.procs.ContainerName(caller.Process.PID)
}

func (p *Pods) find(uid string) *corev1.Pod {
	for uid := range strings.SplitSeq(uid, "/") {
		found, err := p.informer.GetIndexer().ByIndex(byUID, uid)
		if err == nil && len(found) > 0 {
			return found[0].(*corev1.Pod)
		}
	}
	return nil
}
