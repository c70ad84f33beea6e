package pods

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/lockfs/lockfs/lockmgr"
)

// The daemon's ClusterRole has what is asked for here, and nothing else.
func TestClusterRole(t *testing.T) {
	text, err := os.ReadFile("../../deploy/daemonset/base/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	granted := make(map[string]bool) // "watch pods"
	for doc := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole
		if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, verb := range rule.Verbs {
				for i := range rule.Resources {
					granted[verb+" "+rule.APIGroups[0]+rule.Resources[i]] = true
				}
			}
		}
	}
	c := newCluster(t)
	c.put(pod("team-a", "web-0", uid))
	c.eventually("the pod is known", func() bool {
		name, _ := c.Name(caller(uid, container))
		return name != ""
	})
	tell := c.Observer("team-a", "shared")
	asked := make(map[string]bool)
	for range 2 { // the second time it is counted
		tell(lockmgr.LockLost{Holder: lockmgr.Holder{Pod: uid}, Cause: lockmgr.ErrLockLost})
	}
	c.eventually("both events are written, and pods are watched", func() bool {
		events := 0
		for _, a := range c.client.Actions() {
			what := a.GetVerb() + " " + a.GetResource().Group + a.GetResource().Resource
			if what == "create pods" {
				continue // the test's own
			}
			asked[what] = true
			if a.GetResource().Resource == "events" {
				events++
			}
		}
		return events == 2 && asked["watch pods"]
	})
	if !maps.Equal(asked, granted) {
		t.Errorf("asked for %v, granted are %v", slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(granted)))
	}
}
