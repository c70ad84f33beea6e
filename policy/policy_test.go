package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func mustParse(t testing.TB, texts ...string) *Policy {
	t.Helper()
	p, err := parse(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func parse(texts ...string) (*Policy, error) {
	var sources []Source
	for _, text := range texts {
		sources = append(sources, Source{Name: "rules", Text: text})
	}
	return Parse(sources...)
}

const example = `# a comment
*.log	nolock

  /etc/**   readonly # another
/db/**  lock wait=5m scope=pod
/db2/** lock wait=-1 keep=0
/#a# lock
`

func TestMatch(t *testing.T) {
	p := mustParse(t, example)
	for path, want := range map[string]string{
		"f":        "lock",
		"f.log":    "nolock",
		"etc/f":    "readonly",
		"etc/log":  "readonly",
		"etc/.log": "nolock", // the first rule that matches
		"db/f":     "lock 5m0s pod",
		"db2/f":    "lock -1ns keep 0s",
	} {
		d := p.Match(path)
		got := d.Action.String()
		if d.Wait != nil {
			got += " " + d.Wait.String()
		}
		if d.Keep != nil {
			got += " keep " + d.Keep.String()
		}
		if got = strings.TrimSpace(got + " " + string(d.Scope)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	if u := p.Unmatched(); len(u) != 1 || u[0].String() != "/#a# lock" {
		t.Errorf("unmatched: %v", u)
	}
}

func TestNoPolicy(t *testing.T) {
	var none *Policy
	if none.Match("f") != (Decision{}) || !none.Empty() || !none.SameBelow("a", "b") || none.Unmatched() != nil {
		t.Error("a nil policy has rules")
	}
	if none.Digest(FlockLocal) != mustParse(t, "# nothing\n").Digest(FlockLocal) {
		t.Error("two digests of no rules")
	}
}

func TestSameBelow(t *testing.T) {
	for _, c := range []struct {
		rules, from, to string
		same            bool
	}{
		{"*.log nolock", "a", "b/c", true}, // a name's rule goes where the name goes
		{"/s/** nolock", "s/a", "s/b/c", true},
		{"/s/** nolock", "s/a", "a", false},
		{"/s/** nolock", "a", "s", false},
		{"/s/** nolock", "a", "b", true},
		{"/s/** lock wait=1s", "s", "a", true},
		{"/s/** lock flock=cluster", "s", "a", false},
		{"/s/** lock flock=cluster", "s/a", "s/b", true},
		{"/s/*/x nolock", "s/a", "s/b", true},
		{"/s/*/x nolock", "s/a", "s/a/b", false},
		{"**/tmp/** readonly", "a/tmp", "b/tmp", true},
		{"**/tmp/** readonly", "a/tmp", "b/temp", false},
		{"/s/keep/** lock\n/s/** nolock", "s/a", "s/keep", false},
	} {
		p := mustParse(t, c.rules)
		if p.SameBelow(c.from, c.to) != c.same || p.SameBelow(c.to, c.from) != c.same {
			t.Errorf("%q: %s to %s: not %v", c.rules, c.from, c.to, c.same)
		}
	}
}

func TestDigest(t *testing.T) {
	p := mustParse(t, example).Digest(FlockLocal)
	for name, texts := range map[string][]string{
		"spaces and comments":  {strings.ReplaceAll(example, " ", "\t") + "# more"},
		"two sources":          {"**/*.log nolock", strings.Replace(example, "*.log\tnolock", "", 1)},
		"the same wait":        {strings.Replace(example, "5m", "300s", 1)},
		"the order of options": {strings.Replace(example, "wait=5m scope=pod", "scope=pod wait=5m", 1)},
	} {
		if got := mustParse(t, texts...).Digest(FlockLocal); got != p {
			t.Errorf("%s: %s, want %s", name, got, p)
		}
	}
	for name, text := range map[string]string{
		"another order":  "/etc/** readonly\n*.log nolock\n/db/** lock wait=5m scope=pod\n/db2/** lock wait=-1 keep=0\n/#a# lock",
		"another keep":   strings.Replace(example, "keep=0", "keep=1s", 1),
		"another flock":  strings.Replace(example, "keep=0", "keep=0 flock=local", 1),
		"another wait":   strings.Replace(example, "5m", "6m", 1),
		"another action": strings.Replace(example, "readonly", "nolock", 1),
		"a rule less":    strings.Replace(example, "/db2/** lock wait=-1 keep=0", "", 1),
	} {
		if mustParse(t, text).Digest(FlockLocal) == p {
			t.Errorf("%s: the same digest", name)
		}
	}
	if again := mustParse(t, canonical(mustParse(t, example))).Digest(FlockLocal); again != p {
		t.Error("the canonical text has another digest")
	}
}

func canonical(p *Policy) string {
	var b strings.Builder
	for _, r := range p.Rules() {
		fmt.Fprintln(&b, r)
	}
	return b.String()
}

func TestSyntaxErrors(t *testing.T) {
	for text, c := range map[string]struct {
		line, column int
		says         string
	}{
		"*.log":                        {1, 6, "want lock, nolock or readonly"},
		"\n  *.log nolok":              {2, 9, `unknown action "nolok"`},
		"a b c":                        {1, 3, `unknown action "b"`},
		`a\ b`:                         {1, 5, "the action is missing"},
		"a lock\nb/ nolock":            {2, 1, "write ** behind it"},
		"/ lock":                       {1, 1, "empty"},
		"a//b lock":                    {1, 1, "two slashes"},
		"a/../b lock":                  {1, 1, "from the volume's root"},
		"./a lock":                     {1, 1, "from the volume's root"},
		"a**b lock":                    {1, 1, "stands alone"},
		"[a lock":                      {1, 1, `write \[`},
		"a\\":                          {1, 1, `write \[`},
		"a lock wait=soon":             {1, 8, "-1 (for ever)"},
		"a lock wait=-2s":              {1, 8, "-1 (for ever)"},
		"a lock wait=1s wait=2s":       {1, 16, "twice"},
		"a lock scope=galaxy":          {1, 8, "want auto, handle, process, pod or node"},
		"a lock scope":                 {1, 8, "want auto, handle, process, pod or node"},
		"a lock scope=pod scope=pod":   {1, 18, "twice"},
		"a lock patience=1s":           {1, 8, "want wait=DURATION, scope=SCOPE, keep=DURATION or flock=local|cluster"},
		"a lock keep=0.1s":             {1, 8, "at least 500ms"},
		"a lock keep=-1":               {1, 8, "0 (not at all)"},
		"a lock keep=0 keep=0":         {1, 15, "twice"},
		"a nolock keep=0":              {1, 10, "rules that lock"},
		"a nolock scope=pod":           {1, 10, "rules that lock"},
		"a readonly wait=1s # comment": {1, 12, "rules that lock"},
	} {
		_, err := parse("x lock", text)
		var se *SyntaxError
		if !errors.As(err, &se) || se.Line != c.line || se.Column != c.column || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, want line %d, column %d, %q", text, err, c.line, c.column, c.says)
		} else if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "rules: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParseWait(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": 0, "1m30s": 90 * time.Second, "-1": -1} {
		if d, err := ParseWait(s); d != want || err != nil {
			t.Errorf("%q: %v, %v", s, d, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(example)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parse(text)
		if err != nil {
			return
		}
		again, err := parse(canonical(p))
		if err != nil || again.Digest(FlockLocal) != p.Digest(FlockLocal) {
			t.Errorf("the canonical text of %q: %v\n%s", text, err, canonical(p))
		}
		p.Match("a/b")
	})
}

// An open asks the policy, so what it costs is beside a round trip of 15 µs.
func BenchmarkMatch(b *testing.B) {
	var rules strings.Builder
	for i := range 20 {
		fmt.Fprintf(&rules, "*.ext%d nolock\n/dir%d/**/x readonly\n", i, i)
	}
	for name, p := range map[string]*Policy{"none": nil, "one": mustParse(b, "*.log nolock"), "forty": mustParse(b, rules.String())} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				p.Match("some/where/deep/down/a/file.txt")
			}
		})
	}
}
