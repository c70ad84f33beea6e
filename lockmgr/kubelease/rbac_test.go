package kubelease_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lockfs/lockfs/lockmgr"
	"github.com/lockfs/lockfs/lockmgr/kubelease"
)

// manifest has the Role that mounts are given.
const manifest = "../../deploy/daemonset/overlays/kubernetes/rbac.yaml"

// mountUser is the user of all backends of the tests: nothing but the Role gives it
// anything.
const mountUser = "lockfs:test:mount"

// as is how a user reaches the API server.
func as(user string) *rest.Config {
	conf := rest.CopyConfig(kube.Config)
	conf.Impersonate.UserName = user
	return conf
}

func deployedRole() (rbacv1.Role, error) {
	var role rbacv1.Role
	text, err := os.ReadFile(manifest)
	if err != nil {
		return role, err
	}
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil || role.Kind == "Role" {
			return role, err
		}
	}
	return role, errors.New("no Role in " + manifest)
}

// permit gives a user the rules in a namespace.
func permit(user, namespace string, rules []rbacv1.PolicyRule) error {
	client, err := rbacclient.NewForConfig(kube.Config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	meta := metav1.ObjectMeta{Name: "lockfs-test"}
	_, err = client.Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	_, err = client.RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	return err
}

// The Role is what all these tests run with; and each of its verbs is needed.
func TestEachVerbIsNeeded(t *testing.T) {
	t.Parallel()
	role, err := deployedRole()
	if err != nil {
		t.Fatal(err)
	}
	if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].Resources, []string{"leases"}) {
		t.Fatalf("the Role has more than Leases: %v", role.Rules)
	}
	verbs := role.Rules[0].Verbs
	for i, verb := range verbs {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			space, err := kube.NewNamespace()
			if err != nil {
				t.Fatal(err)
			}
			defer kube.DropNamespace(space)
			user := mountUser + ":without:" + verb
			rules := slices.Clone(role.Rules)
			rules[0].Verbs = slices.Delete(slices.Clone(verbs), i, i+1)
			if err := permit(user, space, rules); err != nil {
				t.Fatal(err)
			}
			log := new(record)
			b := newBackendAt(t, as(user), newName(), func(c *kubelease.Config) {
				c.LeaseNamespace, c.Logger = space, slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), log), nil))
			})
			refusal := "cannot " + verb + " resource" // by the server: it is not just slow
			for d := patience / 100; ; d *= 2 {       // it tries for as long as it may
				err := cycle(t, b, d)
				if refused := log.has(refusal) || err != nil && strings.Contains(err.Error(), refusal); refused &&
					(errors.Is(err, lockmgr.ErrUnavailable) || verb == "watch" && !kubelease.Connected(b)) {
					break
				}
				if err == nil && verb != "watch" || d > patience {
					t.Fatalf("all goes without %s: %v", verb, err)
				}
			}
		})
	}
}

// record is what a backend has logged.
type record struct {
	mu   sync.Mutex
	text strings.Builder // GUARDED_BY(mu)
}

func (r *record) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(p)
}

func (r *record) has(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.text.String(), what)
}

// cycle does what a mount does, with a file that it has not had before.
func cycle(t *testing.T, b *kubelease.Backend, timeout time.Duration) error {
	ctx := within(t, timeout)
	if _, err := b.VolumeRecord(ctx, []byte("record"), nil); err != nil {
		return err
	}
	s, err := b.OpenSession(ctx, lockmgr.SessionInfo{}, time.Minute)
	if err != nil {
		return err
	}
	g, err := s.Acquire(ctx, request(lockmgr.NoWait, file("f"+timeout.String())))
	if err == nil {
		err = s.Release(ctx, g[0])
	}
	return errors.Join(err, s.Close(ctx))
}

// Whoever has the locks of one namespace has none of another's.
func TestOtherNamespace(t *testing.T) {
	t.Parallel()
	other, err := kube.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer kube.DropNamespace(other)
	b := newBackendAt(t, as(mountUser), newName(), func(c *kubelease.Config) { c.LeaseNamespace = other })
	if _, err := b.Entries(within(t, patience), ""); !errors.Is(err, lockmgr.ErrUnavailable) || !strings.Contains(err.Error(), "forbidden") {
		t.Fatalf("Entries: %v", err)
	}
	for d := patience / 100; ; d *= 2 { // it tries for as long as it may
		_, err := b.VolumeRecord(within(t, d), []byte("r"), nil)
		if errors.Is(err, lockmgr.ErrUnavailable) && strings.Contains(err.Error(), "forbidden") {
			break
		}
		if err == nil || d > patience {
			t.Fatalf("VolumeRecord: %v", err)
		}
	}
}
