package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	fence   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	code    = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.*)$`)
	scheme  = regexp.MustCompile(`^[a-z]+:`)
)

// Each link of each document leads to a file, and to a heading in it.
func TestLinks(t *testing.T) {
	anchors := make(map[string]map[string]bool) // by document
	links := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(fence.ReplaceAllString(string(text), ""), ""), -1) {
			if scheme.MatchString(m[1]) {
				continue
			}
			links++
			file, name, named := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
				continue
			}
			if !named {
				continue
			}
			if anchors[target] == nil {
				anchors[target] = anchorsOf(t, target)
			}
			if !anchors[target][name] {
				t.Errorf("%s: the link %s leads to no heading", path, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 100 {
		t.Errorf("found %d links", links)
	}
}

// The map leads to each document.
func TestMap(t *testing.T) {
	mapped := read(t, "docs/README.md")
	for name := range documents(t) {
		rel, err := filepath.Rel("docs", name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(mapped, "]("+rel) && name != "README.md" && name != "docs/README.md" {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
	}
}

// anchorsOf returns what a link to a document can name.
func anchorsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]bool)
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(string(text), ""), -1) {
		name := anchor(m[1])
		for i := 1; all[name]; i++ {
			name = anchor(m[1]) + "-" + strconv.Itoa(i)
		}
		all[name] = true
	}
	return all
}

// anchor is what GitHub makes of a heading.
func anchor(heading string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, strings.TrimSpace(heading))
}
