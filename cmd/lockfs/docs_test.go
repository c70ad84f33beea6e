package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const root = "../.."

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// documents are those for users, by their paths from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := make(map[string]string)
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/tutorial/*.md", "docs/how-to/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			rel, err := filepath.Rel(root, n)
			if err != nil {
				t.Fatal(err)
			}
			docs[rel] = read(t, rel)
		}
	}
	return docs
}

// ofVolumes are documents with the flags of the volumes' own programs.
var ofVolumes = regexp.MustCompile(`^docs/how-to/(gluster|cephfs|juicefs|nfs|smb)\.md$`)

func flags() map[string]*pflag.Flag {
	all := make(map[string]*pflag.Flag)
	for _, cmd := range newRoot().Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { all[f.Name] = f })
	}
	return all
}

// Documents speak of flags that there are.
func TestDocumentedFlags(t *testing.T) {
	all := flags()
	mention := regexp.MustCompile("[ `(]--([a-z][a-z-]+)")
	others := regexp.MustCompile("(?m)(`|^ *)(kubectl|etcd|etcdctl|etcdutl|juicefs|unshare|virtiofsd) [^`\n]*")
	for name, text := range documents(t) {
		if ofVolumes.MatchString(name) {
			continue
		}
		text = others.ReplaceAllString(text, "")
		for _, m := range mention.FindAllStringSubmatch(text, -1) {
			if all[m[1]] == nil && m[1] != "version" {
				t.Errorf("%s speaks of --%s, which is no flag", name, m[1])
			}
		}
	}
}

// docs/COMMANDS.md has each command, and all of its flags with their defaults: in the
// tables of its own section, and of the sections of flags that it refers to.
func TestCommands(t *testing.T) {
	sections := make(map[string]string) // by anchor
	for _, s := range strings.Split(read(t, "docs/COMMANDS.md"), "\n## ")[1:] {
		title, text, _ := strings.Cut(s, "\n")
		sections[anchor(title)] = text
	}
	row := regexp.MustCompile("(?m)^\\| (?:`-([a-zA-Z])`, )?`--([a-z-]+)` \\| ([^|]*?) *\\|")
	ref := regexp.MustCompile(`\]\(#(flags-[a-z-]+)\)`)
	type documented struct{ short, value string }
	var collect func(anchor string, into map[string]documented)
	collect = func(anchor string, into map[string]documented) {
		for _, m := range row.FindAllStringSubmatch(sections[anchor], -1) {
			into[m[2]] = documented{m[1], m[3]}
		}
		for _, m := range ref.FindAllStringSubmatch(sections[anchor], -1) {
			collect(m[1], into)
		}
	}
	for _, cmd := range newRoot().Commands() {
		section := "lockfs-" + cmd.Name()
		if _, ok := sections[section]; !ok {
			t.Errorf("docs/COMMANDS.md has no section '## lockfs %s'", cmd.Name())
			continue
		}
		flags := make(map[string]documented)
		collect(section, flags)
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			d, ok := flags[f.Name]
			if !ok {
				t.Errorf("docs/COMMANDS.md, lockfs %s, lacks this line:\n| `--%s` | %s | %s |", cmd.Name(), f.Name, defaultOf(f), f.Usage)
				return
			}
			delete(flags, f.Name)
			if d.short != f.Shorthand {
				t.Errorf("docs/COMMANDS.md: the short form of --%s is %q, want %q", f.Name, d.short, f.Shorthand)
			}
			if want := defaultOf(f); d.value != want && (want != "" || !strings.HasPrefix(d.value, "(")) {
				t.Errorf("docs/COMMANDS.md says that lockfs %s --%s is %q by default, it is %q", cmd.Name(), f.Name, d.value, want)
			}
		})
		for name := range flags {
			t.Errorf("docs/COMMANDS.md: lockfs %s has no --%s", cmd.Name(), name)
		}
	}
}

// defaultOf is empty where only words can say what the default is.
func defaultOf(f *pflag.Flag) string {
	if f.DefValue == "[]" || strings.Contains(f.Usage, "(default: ") || f.Name == "allow-other" {
		return ""
	}
	return f.DefValue
}

// The commands that integration/cluster pastes are where it looks for them.
func TestClusterCommands(t *testing.T) {
	for document, names := range map[string][]string{
		"docs/tutorial/kubernetes.md": {"kubernetes", "etcd", "programs"},
		"docs/OPERATIONS.md":          {"cleanup"},
		"docs/CSI.md":                 {"csi", "csi-programs"},
		"docs/how-to/helm.md":         {"helm", "helm-uninstall"},
	} {
		for _, name := range names {
			if text := read(t, document); strings.Count(text, "<!-- cluster test: "+name+" -->\n```\n") != 1 {
				t.Errorf("%s has no commands %q", document, name)
			}
		}
	}
}

// Rules in documents are rules.
func TestDocumentedRules(t *testing.T) {
	rule := regexp.MustCompile("(?m)^ *([^\\s|`]+ +(?:lock|nolock|readonly)(?: +[a-z]+=\\S+)*)(?: +#.*)?$|--rule '([^']+)'")
	n := 0
	for name, text := range documents(t) {
		for _, m := range rule.FindAllStringSubmatch(text, -1) {
			if m[2] == "RULE" { // stands for one
				continue
			}
			n++
			flags := policyFlags{rules: []string{m[1] + m[2]}}
			if _, err := flags.readPolicy(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if n < 10 {
		t.Errorf("found %d rules", n)
	}
}

// What docs/TROUBLESHOOTING.md quotes, lockfs says: code of three words or more that is
// no command.
func TestQuotedMessages(t *testing.T) {
	source := sources(t, func(path string) bool { return !strings.HasSuffix(path, "_test.go") })
	command := regexp.MustCompile(`^(lockfs [a-z]|kubectl|etcdctl|stat|umount|chattr|modprobe|mountpoint|… )`)
	field := regexp.MustCompile(`[a-z_]+=\S*`)
	n := 0
	text := fence.ReplaceAllString(read(t, "docs/TROUBLESHOOTING.md"), "")
	for _, quoted := range code.FindAllString(text, -1) {
		quoted = strings.Trim(quoted, "`")
		if len(strings.Fields(quoted)) < 3 || command.MatchString(quoted) {
			continue
		}
		n++
		for _, part := range regexp.MustCompile(`…|: `).Split(field.ReplaceAllString(quoted, "…"), -1) {
			part = strings.Trim(part, ` "`)
			if part == "context deadline exceeded" || part == "connection refused" { // Go's and the kernel's
				continue
			}
			if !bytes.Contains(source, []byte(part)) {
				t.Errorf("docs/TROUBLESHOOTING.md quotes %q, which lockfs does not say", part)
			}
		}
	}
	if n < 20 {
		t.Errorf("found %d messages", n)
	}
}

// sources returns the text of the Go files that are wanted.
func sources(t *testing.T, wanted func(path string) bool) []byte {
	t.Helper()
	var source bytes.Buffer
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || !wanted(path) {
			return err
		}
		b, err := os.ReadFile(path)
		source.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return source.Bytes()
}

// The help of a command has each flag under a heading, those that matter most first.
func TestHelpHasGroups(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		for _, name := range firstFlags[cmd.Name()] {
			if cmd.Flags().Lookup(name) == nil {
				t.Errorf("lockfs %s has no --%s", cmd.Name(), name)
			}
		}
		help := cmd.UsageString()
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if n := strings.Count(help, " --"+f.Name+" "); n < 1 {
				t.Errorf("the help of lockfs %s lacks --%s", cmd.Name(), f.Name)
			}
		})
		if strings.Contains(help, "Other flags:") {
			t.Errorf("lockfs %s has flags under no heading:\n%s", cmd.Name(), help)
		}
		for line := range strings.Lines(help + cmd.Long) {
			if utf8.RuneCountInString(line) > 101 && !strings.HasPrefix(line, "  lockfs ") && !strings.HasPrefix(line, "Each flag") {
				t.Errorf("the help of lockfs %s has a long line: %s", cmd.Name(), line)
			}
		}
	}
	titles, first := flagsUnder(newMount())
	n := 0
	first[titles[0]].VisitAll(func(*pflag.Flag) { n++ })
	if n != 10 || len(titles) != 1+len(flagGroups) {
		t.Errorf("'lockfs mount' has %d flags first, and headings %q", n, titles)
	}
	listed := newRoot().UsageString()
	for _, cmd := range newRoot().Commands() {
		if !strings.Contains(listed, "\n  "+cmd.Name()+" ") {
			t.Errorf("'lockfs --help' lacks %s", cmd.Name())
		}
	}
}

// Each flag has an environment twin, and the help says so.
func TestEnvironmentTwins(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		if cmd.Flags().HasFlags() && !strings.Contains(cmd.UsageString(), "is $LOCKFS_") {
			t.Errorf("the help of lockfs %s does not name the environment", cmd.Name())
		}
	}
	t.Setenv("LOCKFS_WAIT", "7s")
	t.Setenv("LOCKFS_TTL", "4s")
	cmd := newMount()
	cmd.RunE = func(*cobra.Command, []string) error { return nil }
	cmd.SetArgs([]string{"--ttl", "5s", "a", "b"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"wait": "7s", "ttl": "5s"} {
		if got := cmd.Flag(name).Value.String(); got != want {
			t.Errorf("--%s is %s, want %s", name, got, want)
		}
	}
}

// Each rule of the semantics names tests, and so does each row of the faults'
// tables. All exist.
func TestRulesHaveTests(t *testing.T) {
	source := sources(t, func(path string) bool { return strings.HasSuffix(path, "_test.go") })
	test := regexp.MustCompile(`\bTest[A-Z]\w+`)
	for doc, rule := range map[string]*regexp.Regexp{
		"docs/SEMANTICS.md": regexp.MustCompile(`(?m)^\*\*\d+\..*`),
		"docs/FAULTS.md":    regexp.MustCompile(`(?m)^\| (?:[a-z]|…).*`),
	} {
		text := read(t, doc)
		rules, names := rule.FindAllString(text, -1), test.FindAllString(text, -1)
		if len(rules) < 10 || len(names) < len(rules) {
			t.Errorf("%d rules of %s name %d tests", len(rules), doc, len(names))
		}
		for i, row := range rules {
			if number := strings.TrimPrefix(row, "**"); number != row && !strings.HasPrefix(number, fmt.Sprintf("%d.", i+1)) {
				t.Errorf("%s: want rule %d: %.60s", doc, i+1, row)
			}
			if strings.HasPrefix(row, "| ") && !strings.HasPrefix(row, "| fault |") && !test.MatchString(row) {
				t.Errorf("%s has no test for %s", doc, row)
			}
		}
		for _, n := range names {
			if !bytes.Contains(source, []byte("func "+n+"(")) {
				t.Errorf("%s names %s, which is no test", doc, n)
			}
		}
	}
}

// The unit's command is one of this program, and each variable of the how-to is one of its flags.
func TestSystemdUnit(t *testing.T) {
	unit, err := os.ReadFile("../../deploy/systemd/lockfs@.service")
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^ExecStart=\S*/lockfs (.*)$`).FindSubmatch(unit)
	if start == nil {
		t.Fatal("the unit starts nothing")
	}
	cmd, args, err := newRoot().Find(strings.Fields(string(start[1])))
	if err != nil || cmd.Name() != "mount" {
		t.Fatalf("the unit runs %s: %v", cmd.Name(), err)
	}
	if err := cmd.ParseFlags(args); err != nil || cmd.Flags().NArg() != 2 {
		t.Errorf("%q: %v", args, err)
	}
	howTo, err := os.ReadFile("../../docs/how-to/several-nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`(?m)^(LOCKFS_[A-Z_]+)=`).FindAllSubmatch(howTo, -1)
	if len(names) < 5 {
		t.Errorf("%d variables", len(names))
	}
	for _, name := range names {
		known := false
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = known || envName(f.Name) == string(name[1]) })
		if !known {
			t.Errorf("%s is no flag of lockfs mount", name[1])
		}
	}
}

// docs/COMMANDS.md has each field that '-o json' prints.
func TestDocumentedJSON(t *testing.T) {
	text := read(t, "docs/COMMANDS.md")
	section := func(title string) string {
		_, s, _ := strings.Cut(text, "\n## "+title+"\n")
		s, _, _ = strings.Cut(s, "\n## ")
		return s
	}
	var check func(typ reflect.Type, section string)
	check = func(typ reflect.Type, section string) {
		switch typ.Kind() {
		case reflect.Pointer, reflect.Slice:
			check(typ.Elem(), section)
		case reflect.Struct:
			for f := range typ.Fields() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				if name == "" {
					continue
				}
				if !strings.Contains(section, "`"+name+"`") {
					t.Errorf("docs/COMMANDS.md lacks the field `%s` of %v", name, typ)
				}
				check(f.Type, section)
			}
		}
	}
	check(reflect.TypeFor[line](), section("lockfs ls"))
	check(reflect.TypeFor[statusOutput](), section("lockfs status"))
}
