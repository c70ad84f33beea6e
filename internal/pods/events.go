package pods

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lockfs/lockfs/lockmgr"
)

// The reasons of events.
const (
	reasonLost      = "LockLost"      // the pod lost a lock: its programs get EIO
	reasonBroken    = "LockBroken"    // the same, by an operator
	reasonWaiting   = "LockWaiting"   // the pod has been waiting for a lock for long
	reasonWaitedFor = "LockWaitedFor" // somebody waits for the pod's lock
	reasonNotServed = "LockfsVolumeNotServed"
)

// NotServed puts an event on this node: its daemon cannot serve a volume, and tries again.
func (p *Pods) NotServed(volume string, cause error) {
	// Events of a node are found by the UID that the kubelet uses, its name.
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: p.node, UID: types.UID(p.node)}
	p.recorder.Event(node, corev1.EventTypeWarning, reasonNotServed, presentable(fmt.Sprintf("volume %s is not served: %v", volume, cause)))
}

// Observer puts events on pods for what happens to their locks on a volume.
func (p *Pods) Observer(namespace, name string) func(lockmgr.Event) {
	volume := namespace + "/" + name
	return func(e lockmgr.Event) {
		switch e := e.(type) {
		case lockmgr.LockLost:
			reason := reasonLost
			if errors.Is(e.Cause, lockmgr.ErrBroken) {
				reason = reasonBroken
			}
			p.tell(e.Holder, corev1.EventTypeWarning, reason, fmt.Sprintf("%s lost the lock of %s in volume %s, and gets EIO from it: %v",
				process(e.Holder), e.Key, volume, e.Cause))
		case lockmgr.RequestWaits:
			waited := e.Waited.Round(time.Second)
			p.tell(e.Holder, corev1.EventTypeNormal, reasonWaiting, fmt.Sprintf("%s has waited %v for the lock of %s in volume %s, which is held by %s",
				process(e.Holder), waited, e.Key, volume, somebody(e.For)))
			p.tell(e.For, corev1.EventTypeNormal, reasonWaitedFor, fmt.Sprintf("%s holds the lock of %s in volume %s, for which %s has waited %v",
				process(e.For), e.Key, volume, somebody(e.Holder), waited))
		}
	}
}

func process(h lockmgr.Holder) string {
	s := fmt.Sprintf("%s (pid %d on node %s", h.Comm, h.PID, h.Node)
	if h.Container != "" {
		s += ", container " + h.Container
	}
	return s + ")"
}

func somebody(h lockmgr.Holder) string {
	switch {
	case h.Node == "":
		return "another owner"
	case h.Pod == "":
		return process(h)
	}
	return "pod " + h.PodLabel() + ", " + process(h)
}

func (p *Pods) tell(h lockmgr.Holder, kind, reason, message string) {
	if ref := p.reference(h); ref != nil {
		p.recorder.Event(ref, kind, reason, presentable(message))
	}
}

// maxMessage is the length in bytes to which Kubernetes limits a message.
const maxMessage = 1000

// presentable makes text, with paths and commands of any bytes, a message.
func presentable(message string) string {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "…"
	}
	return strings.ToValidUTF8(message, "?")
}

// reference returns the pod of a holder, or nil.
func (p *Pods) reference(h lockmgr.Holder) *corev1.ObjectReference {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod"}
	if pod := p.find(h.Pod); pod != nil {
		ref.Namespace, ref.Name, ref.UID = pod.Namespace, pod.Name, pod.UID
		return ref
	}
	var ok bool
	if ref.Namespace, ref.Name, ok = strings.Cut(h.PodName, "/"); !ok {
		return nil
	}
	uid, _, _ := strings.Cut(h.Pod, "/")
	ref.UID = types.UID(uid)
	return ref
}
