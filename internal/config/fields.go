package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/lockfs/lockfs/internal/volume"
	"github.com/lockfs/lockfs/policy"
)

type field struct {
	name     string
	required bool
	set      func(v *Volume, value *yaml.Node) error
}

// fields lists the fields of a volume in the order of docs/CONFIG.md.
var fields = []field{
	{"namespace", false, text(func(v *Volume) *string { return &v.Namespace }, validName("namespace"))},
	{"name", true, text(func(v *Volume) *string { return &v.Name }, validName("name"))},
	{"source", true, text(func(v *Volume) *string { return &v.Source }, absolute)},
	{"mountpoint", true, text(func(v *Volume) *string { return &v.Mountpoint }, absolute)},
	{"backend", false, text(func(v *Volume) *string { return &v.Backend }, oneOf(BackendEtcd, BackendKubernetes))},
	{"endpoints", false, list(func(v *Volume) *[]string { return &v.Endpoints }, endpoint)},
	{"credentials", false, text(func(v *Volume) *string { return &v.Credentials }, directoryName)},
	{"leaseNamespace", false, text(func(v *Volume) *string { return &v.LeaseNamespace }, validName("leaseNamespace"))},
	{"ttl", false, duration(func(v *Volume) *time.Duration { return &v.TTL }, positive)},
	{"wait", false, duration(func(v *Volume) *time.Duration { return &v.Wait }, policy.ParseWait)},
	{"nameWait", false, duration(func(v *Volume) *time.Duration { return &v.NameWait }, positive)},
	{"suspendWait", false, duration(func(v *Volume) *time.Duration { return &v.SuspendWait }, positive)},
	{"keep", false, duration(func(v *Volume) *time.Duration { return &v.Keep }, policy.ParseKeep)},
	{"scope", false, text(func(v *Volume) *string { return (*string)(&v.Scope) }, oneOf(policy.Scopes...))},
	{"sync", false, text(func(v *Volume) *string { return (*string)(&v.Sync) }, oneOf(Syncs...))},
	{"flock", false, text(func(v *Volume) *string { return (*string)(&v.Flock) }, oneOf(policy.Flocks...))},
	{"readLocks", false, flag(func(v *Volume) *bool { return &v.ReadLocks })},
	{"acceptVolume", false, flag(func(v *Volume) *bool { return &v.AcceptVolume })},
	{"policy", false, list(func(v *Volume) *[]string { return &v.Rules }, rule)},
	{"formerPolicy", false, former(listed(list(func(v *Volume) *[]string { return &v.Former.Rules }, rule)))},
	{"formerFlock", false, former(text(func(v *Volume) *string { return (*string)(&v.Former.Flock) }, oneOf(policy.Flocks...)))},
	{"setPolicy", false, flag(func(v *Volume) *bool { return &v.SetPolicy })},
}

// former is a field without which there may be no former policy.
func former(set func(*Volume, *yaml.Node) error) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		v.Former.Given = true
		return set(v, n)
	}
}

// listed is a field that gives the former rules, which may be none.
func listed(set func(*Volume, *yaml.Node) error) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		v.Former.Listed = true
		return set(v, n)
	}
}

// text is a field of one word. check may refuse or normalise it.
func text(at func(*Volume) *string, check func(*string) error) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		s, err := scalar(n, "!!str")
		if err == nil {
			err = check(&s)
		}
		*at(v) = s
		return err
	}
}

func duration(at func(*Volume) *time.Duration, parse func(string) (time.Duration, error)) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		s, err := scalar(n, "!!str", "!!int")
		if err != nil {
			return err
		}
		d, err := parse(s)
		if err != nil {
			return fmt.Errorf("%q: %w", s, err)
		}
		*at(v) = d
		return nil
	}
}

func flag(at func(*Volume) *bool) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		if _, err := scalar(n, "!!bool"); err != nil {
			return errors.New("want true or false")
		}
		return n.Decode(at(v))
	}
}

// list is a field of several words, with errors by line.
func list(at func(*Volume) *[]string, check func(*string) error) func(*Volume, *yaml.Node) error {
	return func(v *Volume, n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return errors.New("want a list: a line that begins with '- ' for each")
		}
		var errs []error
		for _, item := range n.Content {
			item = target(item)
			s, err := scalar(item, "!!str")
			if err == nil {
				err = check(&s)
			}
			if err != nil {
				errs = append(errs, &lineError{item.Line, err})
			}
			*at(v) = append(*at(v), s)
		}
		return errors.Join(errs...)
	}
}

// scalar returns a value that is one word of one of the types.
func scalar(n *yaml.Node, tags ...string) (string, error) {
	switch {
	case n.Kind != yaml.ScalarNode:
		return "", errors.New("want a single value")
	case n.ShortTag() == "!!null":
		return "", errors.New("the value is missing: give one, or drop the field")
	case !slices.Contains(tags, n.ShortTag()):
		return "", fmt.Errorf("%s is not text: put it in quotes", n.Value)
	}
	return n.Value, nil
}

func target(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func validName(kind string) func(*string) error {
	return func(s *string) error { return volume.ValidateName(kind, *s) }
}

func absolute(s *string) error {
	if !filepath.IsAbs(*s) {
		return fmt.Errorf("%q is not an absolute path: begin it with a slash", *s)
	}
	*s = filepath.Clean(*s)
	if *s == "/" {
		return errors.New("/ cannot be it: name a directory")
	}
	return nil
}

func oneOf[T ~string](words ...T) func(*string) error {
	return func(s *string) error {
		if slices.Contains(words, T(*s)) {
			return nil
		}
		names := make([]string, len(words))
		for i, w := range words {
			names[i] = string(w)
		}
		return fmt.Errorf("%q: want one of %s", *s, strings.Join(names, ", "))
	}
}

func endpoint(s *string) error { return CheckEndpoint(*s) }

// CheckEndpoint refuses what is not the URL of an etcd.
func CheckEndpoint(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host+u.Path == "" || !slices.Contains([]string{"http", "https", "unix", "unixs"}, u.Scheme) {
		return fmt.Errorf("%q is not the URL of an etcd: write it as https://etcd:2379", s)
	}
	return nil
}

// directoryName refuses the directories that Kubernetes itself makes in a volume, beside
// those of the items.
func directoryName(s *string) error {
	if *s == "" || strings.HasPrefix(*s, ".") || strings.Contains(*s, "/") {
		return fmt.Errorf("%q: want the name of a directory below --credentials-dir", *s)
	}
	return nil
}

func positive(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, errors.New("want a duration such as 15s or 1m")
	}
	return d, nil
}

func rule(s *string) error {
	if strings.Contains(*s, "\n") {
		return errors.New("a rule is one line: write each as an item of the list")
	}
	p, err := policy.Parse(policy.Source{Text: *s})
	if syntax := new(policy.SyntaxError); errors.As(err, &syntax) {
		return fmt.Errorf("rule %q: column %d: %w", *s, syntax.Column, syntax.Err)
	}
	if err == nil && p.Empty() {
		return fmt.Errorf("%q is not a rule: want %s", *s, policy.Form)
	}
	return err
}
