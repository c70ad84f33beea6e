package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Source is a text of rules.
type Source struct {
	Name string // a file or a flag, for messages
	Text string
}

// SyntaxError reports a rule that cannot be read. Its message says what to write.
type SyntaxError struct {
	Name         string // of the Source
	Line, Column int    // from 1, in bytes
	Err          error
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s: line %d, column %d: %v", e.Name, e.Line, e.Column, e.Err)
}

func (e *SyntaxError) Unwrap() error { return e.Err }

// Parse returns the policy of the rules in sources, in their order. It fails with
// a *SyntaxError; there is no policy of the rules that are right.
func Parse(sources ...Source) (*Policy, error) {
	p := &Policy{}
	for _, s := range sources {
		number := 0
		for line := range strings.Lines(s.Text) {
			number++
			words := split(line)
			if len(words) == 0 {
				continue
			}
			r, at, err := parseRule(words)
			if err != nil {
				return nil, &SyntaxError{Name: s.Name, Line: number, Column: at + 1, Err: err}
			}
			p.rules = append(p.rules, r)
		}
	}
	return p, nil
}

// word is a part of a line and where it begins.
type word struct {
	text string
	at   int
}

const space = " \t\r\n\v\f"

// split returns the words of a line. A space after a backslash is part of a word.
func split(line string) (words []word) {
	for at := 0; at < len(line); {
		if strings.IndexByte(space, line[at]) >= 0 {
			at++
			continue
		}
		if line[at] == '#' {
			break
		}
		end := at
		for end < len(line) && strings.IndexByte(space, line[end]) < 0 {
			if line[end] == '\\' && end+1 < len(line) && line[end+1] != '\n' {
				end++
			}
			end++
		}
		words = append(words, word{line[at:end], at})
		at = end
	}
	return words
}

// parseRule returns the rule of a line's words, or the position of the mistake.
func parseRule(words []word) (r *Rule, at int, err error) {
	r = &Rule{}
	if r.glob, err = parseGlob(words[0].text); err != nil {
		return nil, words[0].at, err
	}
	want := "want " + list(actions)
	if len(words) == 1 {
		return nil, words[0].at + len(words[0].text), fmt.Errorf("the action is missing: %s", want)
	}
	action := slices.Index(actions, words[1].text)
	if action < 0 {
		return nil, words[1].at, fmt.Errorf("unknown action %q: %s", words[1].text, want)
	}
	r.Action = Action(action)
	for _, w := range words[2:] {
		if err := r.option(w.text); err != nil {
			return nil, w.at, err
		}
	}
	return r, 0, nil
}

func (r *Rule) option(text string) error {
	name, value, _ := strings.Cut(text, "=")
	switch {
	case name != "wait" && name != "scope" && name != "keep" && name != "flock":
		return fmt.Errorf("unknown option %q: want wait=DURATION, scope=SCOPE, keep=DURATION or flock=local|cluster", text)
	case r.Action != Lock && name != "flock":
		return fmt.Errorf("%s= is for rules that lock: drop it", name)
	case name == "wait" && r.Wait != nil, name == "scope" && r.Scope != "", name == "keep" && r.Keep != nil, name == "flock" && r.Flock != "":
		return fmt.Errorf("%s= is given twice: drop one", name)
	case name == "wait":
		d, err := ParseWait(value)
		r.Wait = &d
		return err
	case name == "keep":
		d, err := ParseKeep(value)
		r.Keep = &d
		return err
	case name == "flock" && !slices.Contains(Flocks, Flock(value)):
		return fmt.Errorf("unknown flock %q: want %s", value, list(Flocks))
	case name == "flock":
		r.Flock = Flock(value)
		return nil
	case !slices.Contains(Scopes, Scope(value)):
		return fmt.Errorf("unknown scope %q: want %s", value, list(Scopes))
	}
	r.Scope = Scope(value)
	return nil
}

// ParseWait reads how long an open waits; -1 is for ever.
func ParseWait(s string) (time.Duration, error) {
	if s == "-1" {
		return -1, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, errors.New("want a duration such as 30s or 5m, 0 (refuse at once) or -1 (for ever)")
	}
	return d, nil
}

// MinKeep is the shortest time for which locks are kept, except 0. Mounts look for idle locks every
// 250 ms.
const MinKeep = 500 * time.Millisecond

// ParseKeep reads how long a mount keeps a lock that nobody else wants.
func ParseKeep(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil || d != 0 && d < MinKeep {
		return 0, fmt.Errorf("want 0 (not at all), or a duration of at least %v", MinKeep)
	}
	return d, nil
}
