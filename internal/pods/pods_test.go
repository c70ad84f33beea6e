package pods

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/lockfs/lockfs/internal/procid"
	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/renew"
)

const (
	uid       = "2c48913c-b29f-11e7-9350-020968147796"
	hash      = "5a7e3b1c9d2f4e6a8b0c1d2e3f4a5b6c"
	container = "9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c"
)

// listOnly is a client whose server knows no watch that begins with a list.
type listOnly struct{ corev1client.CoreV1Interface }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// cluster is a fake API server, and what is known of it on node "here".
type cluster struct {
	t      *testing.T
	client *fake.Clientset
	*Pods
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, client: fake.NewClientset()}
	proc := t.TempDir()
	err := os.Mkdir(filepath.Join(proc, "7"), 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(proc, "7", "mountinfo"), []byte("1 2 8:1 /kubelet/pods/"+uid+"/containers/starting/0f /dev/termination-log rw\n"), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Pods, err = Start(Config{Client: listOnly{c.client.CoreV1()}, Node: "here", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	c.procs.Root = proc
	t.Cleanup(c.Close)
	return c
}

func (c *cluster) put(p *corev1.Pod) {
	c.t.Helper()
	if _, err := c.client.CoreV1().Pods(p.Namespace).Create(c.t.Context(), p, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func pod(namespace, name, uid string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "here"},
	}
}

func (c *cluster) eventually(what string, cond func() bool) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("never: %s", what)
		}
	}
}

func caller(uid, id string) procid.Caller {
	return procid.Caller{Pod: uid, Container: id, Process: procid.Process{PID: 7}}
}

func (c *cluster) named(uid, id, want string) {
	c.t.Helper()
	var got string
	c.eventually(fmt.Sprintf("%s is %s, not %s", uid, want, got), func() bool {
		name, container := c.Name(caller(uid, id))
		got = name + " " + container
		return got == want
	})
}

func TestNames(t *testing.T) {
	c := newCluster(t)
	if name, container := c.Name(caller(uid, container)); name != "" || container != "" {
		t.Errorf("before anything is known: %q, %q", name, container)
	}
	p := pod("team-a", "web-0", uid)
	c.put(p)
	c.named(uid, container, "team-a/web-0 starting") // its containers have no ids yet
	p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "containerd://" + strings.Repeat("1", 64)}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "starting"}, {Name: "main", ContainerID: "containerd://" + container}}
	if _, err := c.client.CoreV1().Pods("team-a").UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.named(uid, container, "team-a/web-0 main")
	c.named(uid, strings.Repeat("1", 64), "team-a/web-0 init")
	// One in a pod of a cluster inside this one.
	c.named(uid+"/6a1b0f5e-7f0c-4f35-9e62-0d0b1f9b6a11", container, "team-a/web-0 main")

	static := pod("kube-system", "etcd-here", "cc48913c-b29f-11e7-9350-020968147796")
	static.Annotations = map[string]string{mirrorAnnotation: hash}
	static.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "etcd", ContainerID: "cri-o://" + container}}
	c.put(static)
	c.named(hash, container, "kube-system/etcd-here etcd")

	if err := c.client.CoreV1().Pods("team-a").Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.named(uid, container, " ")
}

// event waits for one of a reason on a pod.
func (c *cluster) event(namespace, reason string) (found corev1.Event) {
	c.t.Helper()
	c.eventually("an event "+reason, func() bool {
		list, err := c.client.CoreV1().Events(namespace).List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range list.Items {
			if e.Reason == reason {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

func TestEvents(t *testing.T) {
	c := newCluster(t)
	c.put(pod("team-a", "web-0", uid))
	c.named(uid, "", "team-a/web-0 starting")
	key, err := lockmgr.FileKey("dir/f")
	if err != nil {
		t.Fatal(err)
	}
	tell := c.Observer("team-a", "shared")
	local := lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "here", Pod: uid, PID: 7, Comm: "cp\xff", Container: "main"}
	remote := lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "there", Pod: "77777777-b29f-11e7-9350-020968147796", PodName: "team-b/cron-1"}
	nobody := lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "here", PID: 8, Comm: "sh"}
	unknown := lockmgr.Holder{AcquisitionID: lockmgr.NewAcquisitionID(), Node: "here", Pod: "88888888-b29f-11e7-9350-020968147796"}

	for _, h := range []lockmgr.Holder{nobody, unknown} {
		tell(lockmgr.LockLost{Key: key, Holder: h, Cause: lockmgr.ErrLockLost})
		tell(lockmgr.RequestWaits{Key: key, Holder: h, Waited: time.Minute})
	}
	tell(lockmgr.RequestEnded{})
	tell(lockmgr.LockLost{Key: key, Holder: local, Cause: lockmgr.SessionLost(renew.ErrUnanswered)})
	e := c.event("team-a", reasonLost)
	if e.InvolvedObject.Name != "web-0" || string(e.InvolvedObject.UID) != uid || e.InvolvedObject.Kind != "Pod" || e.Type != "Warning" || e.Source.Host != "here" {
		t.Errorf("the event is %+v", e)
	}
	for _, want := range []string{"lost the lock of dir/f in volume team-a/shared", "cp? (pid 7 on node here, container main)", "EIO", "no renewal was answered in time"} {
		if !strings.Contains(e.Message, want) {
			t.Errorf("the event says %q, and not %q", e.Message, want)
		}
	}
	tell(lockmgr.LockLost{Key: key, Holder: local, Cause: fmt.Errorf("%w: %w by alice: it hangs", lockmgr.ErrLockLost, lockmgr.ErrBroken)})
	if e = c.event("team-a", reasonBroken); !strings.Contains(e.Message, "by alice: it hangs") {
		t.Errorf("the event says %q", e.Message)
	}
	tell(lockmgr.RequestWaits{Key: key, Holder: local, For: remote, Waited: 10 * time.Second})
	if e = c.event("team-a", reasonWaiting); !strings.Contains(e.Message, "waited 10s") || !strings.Contains(e.Message, "held by pod team-b/cron-1") || e.Type != "Normal" {
		t.Errorf("the event is %+v", e)
	}
	e = c.event("team-b", reasonWaitedFor)
	if e.InvolvedObject.Name != "cron-1" || string(e.InvolvedObject.UID) != remote.Pod || !strings.Contains(e.Message, "for which pod "+uid+", cp") {
		t.Errorf("the event is %+v", e)
	}
}

// What is wrong with a volume is an event of the node on which it is not served.
func TestNotServed(t *testing.T) {
	c := newCluster(t)
	c.NotServed("team-a/shared", errors.New("no such directory: /srv/\xff"))
	e := c.event(metav1.NamespaceDefault, reasonNotServed)
	if e.InvolvedObject.Kind != "Node" || e.InvolvedObject.Name != "here" || e.InvolvedObject.UID != "here" || e.Type != "Warning" {
		t.Errorf("the event is %+v", e)
	}
	if want := "volume team-a/shared is not served: no such directory: /srv/?"; e.Message != want {
		t.Errorf("the event says %q, want %q", e.Message, want)
	}
}

// A pod whose locks are all lost, or which waits for ever again, does not flood
// the API server; and nobody waits for one that does not answer.
func TestEventsAreLimited(t *testing.T) {
	c := newCluster(t)
	c.put(pod("team-a", "web-0", uid))
	c.put(pod("team-a", "last", hash))
	c.named(uid, "", "team-a/web-0 starting")
	c.named(hash, "", "team-a/last starting")
	tell := c.Observer("team-a", "shared")
	for i := range 200 {
		key, err := lockmgr.FileKey(fmt.Sprint("f", i))
		if err != nil {
			t.Fatal(err)
		}
		tell(lockmgr.LockLost{Key: key, Holder: lockmgr.Holder{Pod: uid}, Cause: lockmgr.ErrLockLost})
	}
	tell(lockmgr.LockLost{Holder: lockmgr.Holder{Pod: hash}, Cause: fmt.Errorf("%w: %w", lockmgr.ErrLockLost, lockmgr.ErrBroken)})
	c.event("team-a", reasonBroken) // they are written in order
	writes := 0
	for _, a := range c.client.Actions() {
		if a.GetResource().Resource == "events" && a.GetVerb() != "list" {
			writes++
		}
	}
	if writes == 0 || writes > 30 {
		t.Errorf("%d writes for 200 losses of a pod", writes)
	}
}

func TestPresentable(t *testing.T) {
	if got := presentable(strings.Repeat("ä", 3000)); len(got) > maxMessage+10 || strings.Contains(got, "\ufffd") {
		t.Errorf("a long message becomes %d bytes: %q", len(got), got[len(got)-10:])
	}
}
