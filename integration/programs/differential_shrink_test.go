package programs

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// shrink looks for less that still differs in the same way: first fewer steps,
// in halves down to single ones, then simpler ones.
func (r *diffRig) shrink(steps []step, d *difference) ([]step, *difference) {
	deadline := time.Now().Add(40 * time.Second)
	differs := func(s []step) bool {
		if time.Now().After(deadline) {
			return false
		}
		got := r.run(s)
		if got == nil || !got.like(d) {
			return false
		}
		d = got
		return true
	}
	if d.at >= 0 {
		steps = slices.Clone(steps[:d.at+1])
	}
	for size := len(steps) / 2; size > 0; {
		shorter := false
		for i := 0; i+size <= len(steps); {
			if s := slices.Concat(steps[:i], steps[i+size:]); differs(s) {
				steps, shorter = s, true
			} else {
				i += size
			}
		}
		if !shorter || size > 1 {
			size /= 2
		}
	}
	for i := range steps {
		for _, simpler := range simplify(steps[i]) {
			s := slices.Clone(steps)
			s[i] = simpler(s[i])
			if s[i] != steps[i] && differs(s) {
				steps = s
			}
		}
	}
	return steps, d
}

// simplify lists what may make a step simpler.
func simplify(s step) []func(step) step {
	all := []func(step) step{
		func(s step) step { s.Who = 0; return s },
		func(s step) step { s.Dir = 0; return s },
		func(s step) step { s.Off = 0; return s },
		func(s step) step { s.Off2 = 0; return s },
		func(s step) step { s.Data = s.Data[:min(2, len(s.Data))]; return s },
		func(s step) step { s.N = min(s.N, 1); return s },
		func(s step) step { s.N = min(s.N, 4096); return s },
		func(s step) step { s.Mode &^= 0o7000; return s },
		func(s step) step { s.Mode |= min(s.Mode, 1) * 0o666; return s },
	}
	for bit := range 24 {
		all = append(all, func(s step) step { s.Flags &^= 1 << bit; return s })
	}
	return all
}

// String is the step as it stands in a script.
func (s step) String() string {
	var b strings.Builder
	b.WriteByte('{')
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		if f := v.Field(i); !f.IsZero() {
			if b.Len() > 1 {
				b.WriteString(", ")
			}
			name := v.Type().Field(i).Name
			switch {
			case name == "Mode":
				fmt.Fprintf(&b, "%s: %#o", name, f.Interface())
			case name == "Flags":
				fmt.Fprintf(&b, "%s: %s", name, flagNames(s.Op, s.Flags))
			default:
				fmt.Fprintf(&b, "%s: %#v", name, f.Interface())
			}
		}
	}
	return b.String() + "}"
}

// flagNames spells an open's flags out.
func flagNames(op string, flags int) string {
	if op != "open" && op != "reopen" {
		return fmt.Sprintf("%#x", flags)
	}
	names := []string{[]string{"rdonly", "wronly", "rdwr", "3"}[flags&unix.O_ACCMODE]}
	flags &^= unix.O_ACCMODE
	for _, f := range []struct {
		flag int
		name string
	}{
		{unix.O_TMPFILE, "unix.O_TMPFILE"}, {unix.O_SYNC, "unix.O_SYNC"},
		{unix.O_CREAT, "create"}, {unix.O_TRUNC, "trunc"}, {unix.O_APPEND, "appends"}, {unix.O_NONBLOCK, "nonblock"},
		{unix.O_EXCL, "unix.O_EXCL"}, {unix.O_NOFOLLOW, "unix.O_NOFOLLOW"}, {unix.O_DIRECTORY, "unix.O_DIRECTORY"},
		{unix.O_PATH, "unix.O_PATH"}, {unix.O_NOATIME, "unix.O_NOATIME"},
	} {
		if flags&f.flag == f.flag {
			names = append(names, f.name)
			flags &^= f.flag
		}
	}
	if flags != 0 {
		names = append(names, fmt.Sprintf("%#x", flags))
	}
	return strings.Join(names, " | ")
}

// script is steps as they are kept in differentialCases.
func script(steps []step) string {
	var b strings.Builder
	b.WriteString("\t\"\": {steps: []step{\n")
	for _, s := range steps {
		fmt.Fprintf(&b, "\t\t%s,\n", s)
	}
	b.WriteString("\t}},\n")
	return b.String()
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
