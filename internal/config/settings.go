package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// settings are the fields by which the same files behave otherwise.
var settings = []string{"ttl", "wait", "nameWait", "suspendWait", "keep", "scope", "sync", "flock", "readLocks", "acceptVolume"}

// HasSetting reports whether a field of the volume has that value, however it is written. Errors: no
// such field, or no such value.
func (v Volume) HasSetting(name, value string) (bool, error) {
	i := slices.IndexFunc(fields, func(f field) bool { return f.name == name })
	if i < 0 || !slices.Contains(settings, name) {
		return false, fmt.Errorf("want one of %s", strings.Join(settings, ", "))
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(value), &doc); err != nil || len(doc.Content) != 1 {
		return false, fmt.Errorf("%q is no value", value)
	}
	with := v
	if err := fields[i].set(&with, doc.Content[0]); err != nil {
		return false, err
	}
	for _, volume := range []*Volume{&with, &v} {
		volume.SuspendWait = cmp.Or(volume.SuspendWait, volume.TTL)
	}
	return reflect.DeepEqual(with, v), nil
}
