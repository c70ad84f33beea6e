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
	reasonLost      = "LockLost"      // the pod's lock was: its programs get EIO
	reasonBroken    = "LockBroken"    // the same, by an operator
	reasonWaiting   = "LockWaiting"   // the pod waits for a lock, for long
	reasonWaitedFor = "LockWaitedFor" // another pod, or program, waits for the pod's
)

// Observer tells the pods of what happens to their locks on a volume.
func (p *Pods) Observer(namespace, name string) func(lockmgr.Event) {
	volume := namespace + "/" + name
	return func(e lockmgr.Event) {
		switch e := e.(type) {
		case lockmgr.LockLost:
			reason := reasonLost
			if errors.Is(e.Cause, lockmgr.ErrBroken) {
				reason = reasonBroken
			}
			p.tell(e.Holder, corev1.EventTypeWarning, reason, fmt.Sprintf(
				"%s in volume %s is not locked any more, and who has it open%s gets EIO: %v", e.Key, volume, by(e.Holder), e.Cause))
		case lockmgr.RequestWaits:
			waited := e.Waited.Round(time.Second)
			other := "another owner"
			if e.For.Node != "" {
				other = e.For.String()
			}
			p.tell(e.Holder, corev1.EventTypeNormal, reasonWaiting, fmt.Sprintf(
				"waits%s for %s in volume %s for %v now; it is locked by %s", by(e.Holder), e.Key, volume, waited, other))
			p.tell(e.For, corev1.EventTypeNormal, reasonWaitedFor, fmt.Sprintf(
				"has locked%s %s in volume %s, for which somebody waits for %v now: %s", by(e.For), e.Key, volume, waited, e.Holder))
		}
	}
}

// by says which of a pod's processes is meant.
func by(h lockmgr.Holder) string {
	if h.PID == 0 {
		return ""
	}
	s := fmt.Sprintf(" (pid %d on the node, %s", h.PID, h.Comm)
	if h.Container != "" {
		s += ", container " + h.Container
	}
	return s + ")"
}

// tell puts an event on a holder's pod, if it is in one that has a name.
func (p *Pods) tell(h lockmgr.Holder, kind, reason, message string) {
	if ref := p.reference(h); ref != nil {
		p.recorder.Event(ref, kind, reason, presentable(message))
	}
}

// maxMessage is how many bytes of a message Kubernetes keeps of newer events.
const maxMessage = 1000

// presentable makes a message of text: paths and commands are any bytes.
func presentable(message string) string {
	if len(message) > maxMessage {
		message = message[:maxMessage] + "…"
	}
	return strings.ToValidUTF8(message, "?")
}

// reference returns the pod of a holder, on this node or on another, as its entry
// names it. nil if there is none.
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
