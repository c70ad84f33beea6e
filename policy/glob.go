package policy

import (
	"errors"
	"path"
	"strings"
)

// glob is a pattern of paths, taken apart at its slashes.
type glob []part

// part matches one name, or any number of them.
type part struct {
	text    string
	literal bool // text is a name, not a pattern
	many    bool // text is **
}

const many = "**"

// parseGlob returns the glob that text means. Its errors say what to write.
func parseGlob(text string) (glob, error) {
	anchored := strings.Contains(text, "/")
	switch {
	case strings.Trim(text, "/") == "":
		return nil, errors.New("the glob is empty")
	case strings.HasSuffix(text, "/"):
		return nil, errors.New("the glob ends in a slash: write ** behind it for all that is below")
	}
	var g glob
	if !anchored && text != many {
		g = append(g, part{text: many, many: true})
	}
	for name := range strings.SplitSeq(strings.TrimPrefix(text, "/"), "/") {
		switch _, err := path.Match(name, ""); {
		case name == "":
			return nil, errors.New("the glob has two slashes in a row: write one, or /**/ for any number of directories")
		case name == "." || name == "..":
			return nil, errors.New("the glob has a part . or ..: write the path from the volume's root")
		case name == many:
			g = append(g, part{text: many, many: true})
		case strings.Contains(name, many):
			return nil, errors.New("** stands alone between slashes: write * for a part of a name")
		case err != nil:
			return nil, errors.New(`the glob has a [ without its ], or a \ at the end: write \[ or \\ for the character itself`)
		default:
			g = append(g, part{text: name, literal: !strings.ContainsAny(name, `*?[\`)})
		}
	}
	return g, nil
}

// String is the glob in its canonical form, which counts from the root.
func (g glob) String() string {
	var b strings.Builder
	for _, p := range g {
		b.WriteString("/" + p.text)
	}
	return b.String()
}

func (p part) match(name string) bool {
	if p.literal {
		return p.text == name
	}
	ok, _ := path.Match(p.text, name) // parseGlob has seen its errors
	return ok
}

// match reports whether the glob matches a whole path.
func (g glob) match(path string) bool {
	if len(g) == 2 && g[0].many && !g[1].many { // the usual *.log: only the last name counts
		return path != "" && g[1].match(path[strings.LastIndexByte(path, '/')+1:])
	}
	// As in the matching of a * in a string, only the last ** is worth going
	// back to: whatever an earlier one could take, the last can.
	back, backPath := -1, ""
	i, rest, more := 0, path, path != ""
	for more {
		if i < len(g) && g[i].many {
			if i == len(g)-1 {
				return true
			}
			back, backPath = i, rest
			i++
			continue
		}
		name, after, slash := strings.Cut(rest, "/")
		if i < len(g) && g[i].match(name) {
			i, rest, more = i+1, after, slash
			continue
		}
		if back < 0 {
			return false
		}
		_, backPath, more = strings.Cut(backPath, "/")
		i, rest = back+1, backPath
	}
	return i == len(g)
}

// below returns which parts of the glob a path may go on with that has led to
// dir. If they are the same for two directories, so is what the glob matches
// below them.
func (g glob) below(dir string) []bool {
	at := make([]bool, len(g))
	reach := func(at []bool, i int) {
		for ; i < len(g); i++ {
			at[i] = true
			if !g[i].many || i == len(g)-1 { // a ** before others may stand for nothing
				break
			}
		}
	}
	reach(at, 0)
	for more := dir != ""; more; {
		var name string
		name, dir, more = strings.Cut(dir, "/")
		next := make([]bool, len(g))
		for i := range g {
			switch {
			case !at[i]:
			case g[i].many:
				reach(next, i)
			case g[i].match(name):
				reach(next, i+1)
			}
		}
		at = next
	}
	return at
}
