package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func mustGlob(t testing.TB, text string) glob {
	t.Helper()
	g, err := parseGlob(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return g
}

func TestGlob(t *testing.T) {
	for text, c := range map[string]struct{ yes, no []string }{
		"*.log":      {[]string{"a.log", ".log", "d/a.log", "d/e/a.log"}, []string{"a.log/b", "a.logs", "", "log"}},
		"/*.log":     {[]string{"a.log"}, []string{"d/a.log"}},
		"name":       {[]string{"name", "d/name"}, []string{"name/below", "names"}},
		"d/name":     {[]string{"d/name"}, []string{"e/d/name", "d/e/name"}},
		"/d/name":    {[]string{"d/name"}, []string{"e/d/name"}},
		"d/**":       {[]string{"d/a", "d/a/b"}, []string{"d", "e/d/a", "da"}},
		"**":         {[]string{"a", "a/b"}, []string{""}},
		"**/d/**":    {[]string{"d/a", "e/d/a", "d/d/a"}, []string{"d", "e/d"}},
		"a/**/b":     {[]string{"a/b", "a/x/b", "a/x/y/b", "a/b/b"}, []string{"a/bb", "x/a/b", "a/b/c"}},
		"a/**/b/*/c": {[]string{"a/b/x/c", "a/b/b/c/c", "a/b/x/b/y/c"}, []string{"a/b/c", "a/b/x/c/d"}},
		"a?c":        {[]string{"abc", "aßc", "a\xffc"}, []string{"ac", "a/c", "abbc"}},
		"[a-c]x":     {[]string{"ax", "d/cx"}, []string{"dx", "x"}},
		"[^a-c]x":    {[]string{"dx"}, []string{"ax"}},
		`a\ b`:       {[]string{"a b"}, []string{`a\ b`}},
		`\*`:         {[]string{"*"}, []string{"a"}},
		`\#x`:        {[]string{"#x"}, []string{"x"}},
		"\xff":       {[]string{"\xff"}, []string{"\xfe", "\uFFFD"}},
		".*":         {[]string{".hidden"}, []string{"shown"}},
		"{a,b}":      {[]string{"{a,b}"}, []string{"a"}},
	} {
		g := mustGlob(t, text)
		for _, path := range c.yes {
			if !g.match(path) {
				t.Errorf("%q does not match %q", text, path)
			}
		}
		for _, path := range c.no {
			if g.match(path) {
				t.Errorf("%q matches %q", text, path)
			}
		}
	}
}

// matchSlow is match by its definition.
func matchSlow(g glob, names []string) bool {
	switch {
	case len(g) == 0:
		return len(names) == 0
	case g[0].many && len(g) == 1:
		return len(names) > 0
	case g[0].many:
		return matchSlow(g[1:], names) || len(names) > 0 && matchSlow(g, names[1:])
	}
	return len(names) > 0 && g[0].match(names[0]) && matchSlow(g[1:], names[1:])
}

// Random globs of few names over random paths of few names meet every way back.
func TestGlobAgainstDefinition(t *testing.T) {
	pick := func(words ...string) string {
		n := 1 + rand.N(6)
		parts := make([]string, n)
		for i := range parts {
			parts[i] = words[rand.N(len(words))]
		}
		return strings.Join(parts, "/")
	}
	for range 200_000 {
		text, path := "/"+pick("a", "b", "*", "**", "**"), pick("a", "b")
		g, names := mustGlob(t, text), strings.Split(path, "/")
		if got, want := g.match(path), matchSlow(g, names); got != want {
			t.Fatalf("%q matches %q: %v, want %v", text, path, got, want)
		}
		// What is below a directory is matched there as it is below another
		// with the same rest of the glob.
		dir, other := pick("a", "b"), pick("a", "b")
		if slices.Equal(g.below(dir), g.below(other)) && g.match(dir+"/"+path) != g.match(other+"/"+path) {
			t.Fatalf("%q matches %q below %q or %q, and not below both", text, path, dir, other)
		}
	}
}
