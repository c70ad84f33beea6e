package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// InvalidError says all that is wrong with a file, each as
//
//	FILE:LINE: what is wrong, and what to do
type InvalidError struct{ Problems []Problem }

// Problem is one mistake in a file.
type Problem struct {
	File string
	Line int // 0: not known
	Text string
}

func (p Problem) String() string {
	if p.Line == 0 {
		return fmt.Sprintf("%s: %s", p.File, p.Text)
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
}

func (e *InvalidError) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }

// Parse reads the text of a file. It fails with an *InvalidError, in which name
// stands for the file.
func Parse(name string, text []byte) (*File, error) {
	p := &parser{name: name}
	f := p.file(text)
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b Problem) int { return cmp.Compare(a.Line, b.Line) })
		return nil, &InvalidError{p.problems}
	}
	return f, nil
}

type parser struct {
	name     string
	problems []Problem
}

func (p *parser) refuse(line int, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.name, line, fmt.Sprintf(format, args...)})
}

// syntax matches the library's errors of invalid YAML.
var syntax = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (p *parser) file(text []byte) *File {
	const empty = "'volumes' is missing: write 'volumes: []' to serve none"
	var doc, more yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(text))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.refuse(1, empty)
		return nil
	case err != nil:
		line := 0
		if m := syntax.FindStringSubmatch(err.Error()); m != nil {
			line, _ = strconv.Atoi(m[1])
		}
		p.refuse(line, "not valid YAML, in this line or soon after it: %s", syntax.ReplaceAllString(err.Error(), ""))
		return nil
	}
	if err := dec.Decode(&more); !errors.Is(err, io.EOF) {
		p.refuse(max(more.Line, 1), "a second document begins: put all volumes into the first")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null" {
		p.refuse(root.Line, empty)
		return nil
	}
	f := &File{}
	var items *yaml.Node
	p.mapping(root, "the file", func(key, value *yaml.Node) bool {
		if key.Value == "volumes" {
			items = value
		}
		return key.Value == "volumes"
	})
	switch {
	case root.Kind != yaml.MappingNode:
	case items == nil:
		p.refuse(root.Line, empty)
	case items.Kind != yaml.SequenceNode:
		p.refuse(items.Line, "volumes: want a list: '- name: …' for each volume")
	default:
		all := make([]parsed, len(items.Content))
		for i, n := range items.Content {
			all[i] = p.volume(target(n))
			f.Volumes = append(f.Volumes, all[i].Volume)
		}
		p.together(all)
	}
	return f
}

// mapping goes through the keys of n. set returns false for one it does not know.
func (p *parser) mapping(n *yaml.Node, what string, set func(key, value *yaml.Node) bool) {
	if n.Kind != yaml.MappingNode {
		p.refuse(n.Line, "%s: want 'field: value' lines", what)
		return
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if line, ok := seen[key.Value]; ok {
			p.refuse(key.Line, "%s is given twice, in line %d first: drop one", key.Value, line)
			continue
		}
		seen[key.Value] = key.Line
		if !set(key, target(n.Content[i+1])) {
			p.refuse(key.Line, "%s has no field %q: drop it, or correct the spelling", what, key.Value)
		}
	}
}

type parsed struct {
	Volume
	line  int
	lines map[string]int  // of the fields that are given
	wrong map[string]bool // the fields that are refused already
}

// at is the line of a field, or of the volume if it is not given.
func (v *parsed) at(field string) int {
	if line, ok := v.lines[field]; ok {
		return line
	}
	return v.line
}

func (p *parser) volume(n *yaml.Node) parsed {
	v := parsed{Volume: defaults(), line: n.Line, lines: make(map[string]int), wrong: make(map[string]bool)}
	p.mapping(n, "a volume", func(key, value *yaml.Node) bool {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if i < 0 {
			return false
		}
		v.lines[key.Value] = key.Line
		if err := fields[i].set(&v.Volume, value); err != nil {
			p.refuseField(key.Value, key.Line, err)
			v.wrong[key.Value] = true
		}
		return true
	})
	if n.Kind != yaml.MappingNode {
		return v
	}
	for _, f := range fields {
		if _, ok := v.lines[f.name]; f.required && !ok {
			p.refuse(v.line, "%s is missing", f.name)
		}
	}
	p.complete(&v)
	return v
}

// refuseField reports an error of a field; a list may have several.
func (p *parser) refuseField(name string, line int, err error) {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, err := range many.Unwrap() {
			p.refuseField(name, line, err)
		}
		return
	}
	if own := new(lineError); errors.As(err, &own) {
		line = own.line
	}
	p.refuse(line, "%s: %v", name, err)
}
