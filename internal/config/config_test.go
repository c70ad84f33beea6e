package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockfs/lockfs/policy"
)

const full = `# Comments are as in any YAML.
volumes:
- namespace: team-a
  name: shared
  source: /srv/shared/
  mountpoint: /var/lib/lockfs/shared/view
  backend: kubernetes
  leaseNamespace: locks
  credentials: team-a
  ttl: 20s
  wait: -1
  nameWait: 2s
  suspendWait: 1m
  keep: 0
  scope: node
  sync: always
  readLocks: true
  policy:
  - "*.log nolock"
  - /etc/** readonly   # no quotes needed
  setPolicy: true
- name: plain
  source: &s /srv/plain
  mountpoint: /var/lib/lockfs/plain/view
  endpoints: ["https://etcd.kube-system:2379", "unix:///run/etcd.sock"]
`

func TestParse(t *testing.T) {
	f, err := Parse("f", []byte(full))
	if err != nil {
		t.Fatal(err)
	}
	want := []Volume{{
		Namespace: "team-a", Name: "shared", Source: "/srv/shared", Mountpoint: "/var/lib/lockfs/shared/view",
		Backend: BackendKubernetes, LeaseNamespace: "locks", Credentials: "team-a",
		TTL: 20 * time.Second, Wait: -1, NameWait: 2 * time.Second, SuspendWait: time.Minute,
		Scope: policy.ScopeNode, Sync: "always", ReadLocks: true, Flock: "local", Rules: []string{"*.log nolock", "/etc/** readonly"}, SetPolicy: true,
	}, {
		Namespace: "default", Name: "plain", Source: "/srv/plain", Mountpoint: "/var/lib/lockfs/plain/view",
		Backend: BackendEtcd, Endpoints: []string{"https://etcd.kube-system:2379", "unix:///run/etcd.sock"},
		TTL: 15 * time.Second, Wait: 30 * time.Second, NameWait: time.Second, Keep: 2 * time.Second, Scope: policy.ScopeAuto, Sync: "auto", Flock: "local",
	}}
	if !reflect.DeepEqual(f.Volumes, want) {
		t.Errorf("got  %+v\nwant %+v", f.Volumes, want)
	}
	if p := f.Volumes[0].Policy(); len(p.Rules()) != 2 {
		t.Errorf("policy %v", p)
	}
	if f, err := Parse("f", []byte("volumes: []")); err != nil || len(f.Volumes) != 0 {
		t.Errorf("no volumes: %v, %v", f, err)
	}
}

// A former policy without rules is one; without its fields there is none. What is not given is as it
// is now.
func TestFormer(t *testing.T) {
	const volume = "volumes:\n- {name: v, source: /s/v, mountpoint: /m/v, endpoints: [http://e], flock: cluster, policy: [n nolock]%s}\n"
	type terms struct {
		rules []string
		flock string
	}
	for given, want := range map[string]*terms{
		"":                         nil,
		", formerPolicy: []":       {nil, "cluster"},
		", formerFlock: local":     {[]string{"n nolock"}, "local"},
		", formerPolicy: [f lock]": {[]string{"f lock"}, "cluster"},
	} {
		f, err := Parse("f", fmt.Appendf(nil, volume, given))
		if err != nil {
			t.Fatal(err)
		}
		former := f.Volumes[0].FormerTerms()
		if (former != nil) != (want != nil) || former != nil && former.Digest() != (policy.Terms{Policy: policyOf(want.rules), Flock: policy.Flock(want.flock)}).Digest() {
			t.Errorf("%q: %+v, want %+v", given, former, want)
		}
	}
	var revisions []string // as 'lockfs serve' compares them
	for range 2 {
		f, err := Parse("f", fmt.Appendf(nil, volume, ", formerPolicy: [f lock]"))
		if err != nil {
			t.Fatal(err)
		}
		revisions = append(revisions, fmt.Sprintf("%+v", f.Volumes[0]))
	}
	if revisions[0] != revisions[1] {
		t.Errorf("one file, read twice: %q", revisions)
	}
}

// What is wrong is named with its line, all of it at once.
func TestProblems(t *testing.T) {
	const good = "- {name: a, source: /s/a, mountpoint: /m/a, endpoints: [http://e]}\n"
	volume := func(lines ...string) string {
		return "volumes:\n- name: v\n  source: /s/v\n  mountpoint: /m/v\n  endpoints: [http://e]\n  " + strings.Join(lines, "\n  ")
	}
	for name, c := range map[string]struct {
		text string
		want []string // beginnings of lines
	}{
		"empty":              {"", []string{"f:1: 'volumes' is missing"}},
		"comment only":       {"# volumes\n", []string{"f:1: 'volumes' is missing"}},
		"null":               {"~\n", []string{"f:1: 'volumes' is missing"}},
		"no volumes":         {"{}", []string{"f:1: 'volumes' is missing"}},
		"volumes are null":   {"volumes:\n", []string{"f:1: volumes: want a list"}},
		"no mapping":         {"- a\n", []string{"f:1: the file: want 'field: value' lines"}},
		"no YAML":            {"volumes:\n- name: a\n\tsource: b\n", []string{"f:2: not valid YAML, in this line or soon after it: found a tab"}},
		"unknown alias":      {"volumes: *v\n", []string{"f: not valid YAML, in this line or soon after it: unknown anchor"}},
		"two documents":      {"volumes: []\n---\nvolumes: []\n", []string{"f:2: a second document"}},
		"unknown on top":     {"volumes: []\nvolume: []\n", []string{`f:2: the file has no field "volume"`}},
		"twice on top":       {"volumes: []\nvolumes: []\n", []string{"f:2: volumes is given twice, in line 1 first"}},
		"volume is a word":   {"volumes:\n- a\n", []string{"f:2: a volume: want 'field: value' lines"}},
		"unknown":            {volume("mountPoint: /x"), []string{`f:6: a volume has no field "mountPoint": drop it`}},
		"twice":              {volume("name: w"), []string{"f:6: name is given twice, in line 2 first"}},
		"missing":            {"volumes:\n- namespace: x\n", []string{"f:2: name is missing", "f:2: source is missing", "f:2: mountpoint is missing", "f:2: endpoints: name those"}},
		"of several kinds":   {"volumes:\n- name: v\n  source: /s\n  mountpoint: /m\n  wait: soon\n  ttl: 2s\n  leaseNamespace: a\n", []string{"f:2: endpoints: name", `f:5: wait: "soon"`, "f:6: ttl: 2s: want whole", "f:7: leaseNamespace: only"}},
		"no endpoints":       {"volumes:\n- name: v\n  source: /s\n  mountpoint: /m\n", []string{"f:2: endpoints: name those of the etcd"}},
		"null endpoints":     {"volumes:\n- name: v\n  source: /s\n  mountpoint: /m\n  endpoints:\n", []string{"f:5: endpoints: want a list"}},
		"several":            {volume("wait: soon", "scope: galaxy", "sync: [a]", "readLocks: maybe", "setPolicy:"), []string{`f:6: wait: "soon": want a duration`, `f:7: scope: "galaxy": want one of auto, handle`, "f:8: sync: want a single value", "f:9: readLocks: want true or false", "f:10: setPolicy: want true"}},
		"numbers":            {volume("namespace: 12", "ttl: 15"), []string{"f:6: namespace: 12 is not text: put it in quotes", `f:7: ttl: "15": want a duration such as 15s`}},
		"bad name":           {volume("namespace: a/b"), []string{`f:6: namespace: invalid name: the namespace "a/b" contains a '/'`}},
		"relative":           {"volumes:\n- {name: v, source: s, mountpoint: /, endpoints: [http://e]}\n", []string{`f:2: source: "s" is not an absolute path`, "f:2: mountpoint: / cannot be it"}},
		"ttl too short":      {volume("ttl: 1s"), []string{"f:6: ttl: 1s: want whole seconds, at least 3s"}},
		"ttl negative":       {volume("ttl: -15s"), []string{`f:6: ttl: "-15s": want a duration`}},
		"endpoint":           {"volumes:\n- name: v\n  source: /s\n  mountpoint: /m\n  endpoints:\n  - https://e:2379\n  - e:2379\n  -\n", []string{`f:7: endpoints: "e:2379" is not the URL of an etcd`, "f:8: endpoints: the value is missing"}},
		"credentials":        {volume("credentials: ../b"), []string{`f:6: credentials: "../b": want the name`}},
		"leases with etcd":   {volume("leaseNamespace: a"), []string{"f:6: leaseNamespace: only backend kubernetes"}},
		"etcd with leases":   {volume("backend: kubernetes"), []string{"f:5: endpoints: only backend etcd"}},
		"rules":              {volume("policy:", "- '*.log nolock'", "- '*.tmp nolok'", "- ''", `- "a lock\nb lock"`), []string{`f:8: policy: rule "*.tmp nolok": column 7: unknown action`, `f:9: policy: "" is not a rule`, "f:10: policy: a rule is one line"}},
		"rules in one":       {volume("policy: |", "  *.log nolock"), []string{"f:6: policy: want a list"}},
		"same volume":        {"volumes:\n" + good + strings.Replace(good, "/m/a", "/m/b", 1), []string{"f:3: name: volume default/a is in line 2 already"}},
		"same mountpoint":    {"volumes:\n" + good + strings.Replace(good, "name: a", "name: b", 1), []string{"f:3: mountpoint: /m/a is that of default/a in line 2 already"}},
		"source in a view":   {"volumes:\n" + good + "- {name: b, source: /m/a/x, mountpoint: /m/b, endpoints: [http://e]}\n", []string{"f:3: source: /m/a/x is in the view of default/a at /m/a"}},
		"view in a source":   {"volumes:\n" + good + "- {name: b, source: /s/b, mountpoint: /s/a/x, endpoints: [http://e]}\n", []string{"f:3: mountpoint: /s/a/x is in the source of default/a"}},
		"view in a view":     {"volumes:\n" + good + "- {name: b, source: /s/b, mountpoint: /m/a/b, endpoints: [http://e]}\n", []string{"f:3: mountpoint: /m/a/b is in the view of default/a at /m/a"}},
		"view of itself":     {"volumes:\n- {name: b, source: /s, mountpoint: /s/m, endpoints: [http://e]}\n", []string{"f:2: mountpoint: /s/m is in the source of default/b"}},
		"two sources in one": {"volumes:\n" + good + "- {name: b, source: /s/a/x, mountpoint: /m/b, endpoints: [http://e]}\n", nil},
		"alias":              {"volumes:\n- {name: a, source: /s/a, mountpoint: /m/a, endpoints: &e [http://e, x]}\n- {name: b, source: /s/b, mountpoint: /m/b, endpoints: *e}\n", []string{`f:2: endpoints: "x"`, `f:2: endpoints: "x"`}},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse("f", []byte(c.text))
			if c.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			invalid := new(InvalidError)
			if !errors.As(err, &invalid) || f != nil {
				t.Fatalf("%v, %v", f, err)
			}
			got := strings.Split(err.Error(), "\n")
			if len(got) != len(c.want) || !slices.EqualFunc(got, c.want, strings.HasPrefix) {
				t.Errorf("got\n%s\nwant\n%s", err, strings.Join(c.want, "\n"))
			}
		})
	}
}

// docs/CONFIG.md has a row for each field, in order, with the defaults that
// there are.
func TestDocumentedFields(t *testing.T) {
	b, err := os.ReadFile("../../docs/CONFIG.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	documented := make(map[string]string)
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|([^|]*)\\|").FindAllStringSubmatch(string(b), -1) {
		rows = append(rows, m[1])
		documented[m[1]] = strings.Trim(strings.TrimSpace(m[2]), "`")
	}
	var want []string
	for _, f := range fields {
		want = append(want, f.name)
		if required := documented[f.name] == "required"; required != f.required {
			t.Errorf("docs/CONFIG.md says of %s: %q; required is %v", f.name, documented[f.name], f.required)
		}
	}
	if !slices.Equal(rows, want) {
		t.Errorf("docs/CONFIG.md has %q\nthe fields are    %q", rows, want)
	}
	d := defaults()
	for name, value := range map[string]string{
		"namespace": d.Namespace, "backend": d.Backend, "ttl": d.TTL.String(), "wait": d.Wait.String(),
		"nameWait": d.NameWait.String(), "keep": d.Keep.String(), "scope": string(d.Scope), "sync": string(d.Sync), "flock": string(d.Flock),
	} {
		if documented[name] != value {
			t.Errorf("docs/CONFIG.md says that %s is %q by default, it is %q", name, documented[name], value)
		}
	}
	example := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindSubmatch(b)
	if example == nil {
		t.Fatal("docs/CONFIG.md has no example")
	}
	if _, err := Parse("the example", example[1]); err != nil {
		t.Error(err)
	}
}

// The chart's schema knows the fields, and no others.
func TestSchemaOfTheChart(t *testing.T) {
	text, err := os.ReadFile("../../deploy/helm/lockfs/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Volumes struct {
				Items struct{ Properties map[string]any }
			}
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, f := range fields {
		want = append(want, f.name)
	}
	slices.Sort(want)
	if known := slices.Sorted(maps.Keys(schema.Properties.Volumes.Items.Properties)); !slices.Equal(known, want) {
		t.Errorf("the schema has the fields %q, the file %q", known, want)
	}
}
