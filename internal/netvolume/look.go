package netvolume

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockfs/lockfs/internal/mounts"
)

// Look returns what is wrong with source's volume and those mounted below. flocks: the embedded
// lock service takes a flock in source. Look asks the volume, which may hang.
func Look(source string, flocks bool) ([]Finding, error) {
	at, _, err := mounts.Containing(source)
	if err != nil {
		return nil, fmt.Errorf("the mount of SOURCE %s: %w", source, err)
	}
	below, err := mounts.Below(source)
	if err != nil {
		return nil, err
	}
	var found []Finding
	if at.Network() {
		found = lookAt(at, source, flocks, "/proc")
	}
	for _, m := range below {
		if m.Network() { // the flock is not there
			found = append(found, lookAt(m, m.Point, false, "/proc")...)
		}
	}
	return found, nil
}

func lookAt(m mounts.Mount, dir string, flocks bool, proc string) (found []Finding) {
	v := volumeOf(m.FSType)
	if v == nil {
		return []Finding{{
			Volume: m.FSType, Point: m.Point, What: "nobody knows what this client believes, and for how long",
			Set: "try it with lockfs check-volume",
		}}
	}
	f := facts{options: splitOptions(m.Super), m: m, dir: dir, proc: proc}
	if v.ask != nil {
		v.ask(&f)
	}
	var unseen []string
	for _, r := range v.requirements {
		if r.flocks && !flocks {
			continue
		}
		value, seen := f.value(r)
		switch {
		case !seen:
			unseen = append(unseen, r.set)
		case !r.holds(value):
			found = append(found, Finding{Volume: v.name, Point: m.Point, What: r.describe(value), Rules: r.rules, Set: r.set})
		}
	}
	if len(unseen) > 0 {
		found = append(found, Finding{
			Volume: v.name, Point: m.Point, What: "its client's options cannot be seen from here",
			Set: "make sure of: " + strings.Join(slices.Compact(unseen), "; "),
		})
	}
	return found
}

// facts are what is known of a mount. A nil map was not seen.
type facts struct {
	options map[string]string // of the mount, as the kernel prints them
	client  map[string]string // of the client's process
	volume  map[string]string // of the volume itself

	m    mounts.Mount
	dir  string // an existing directory of it
	proc string // the proc file system
}

// value returns an option, "" if it is not given. seen is false if that cannot be known.
func (f *facts) value(r requirement) (value string, seen bool) {
	from := map[origin]map[string]string{ofMount: f.options, ofClient: f.client, ofVolume: f.volume}[r.from]
	return from[r.option], from != nil || r.from == always
}

// splitOptions parses options as in the table of mounts.
func splitOptions(s string) map[string]string {
	options := make(map[string]string)
	for o := range strings.SplitSeq(s, ",") {
		name, value, given := strings.Cut(o, "=")
		if !given {
			value = bare
		}
		options[name] = value
	}
	return options
}

// bare is the value of an option without one.
const bare = "1"
