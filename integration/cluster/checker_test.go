package cluster

import (
	"maps"
	"strings"
	"testing"
)

// What the scenarios rely on to find a fault finds it.
func TestParseTurns(t *testing.T) {
	for name, c := range map[string]struct {
		log  string
		want map[string]int
		err  string
	}{
		"turns":            {"a 1 1\na 1 2\na 1 3\nb 1 1\nb 1 2\nb 1 3\na 2 1\na 2 2\na 2 3\n", map[string]int{"a": 2, "b": 1}, ""},
		"under way":        {"a 1 1\na 1 2\na 1 3\na 2 1\na 2", map[string]int{"a": 1}, ""},
		"cut short":        {"a 1 1\na 1 2\nb 1 1\nb 1 2\nb 1 3\na 1 1\na 1 2\na 1 3\n", map[string]int{"a": 1, "b": 1}, ""},
		"made twice":       {"a 1 1\na 1 2\na 1 3\na 1 1\na 1 2\na 1 3\na 2 1\na 2 2\na 2 3\n", map[string]int{"a": 2}, ""},
		"two at once":      {"a 1 1\nb 1 1\na 1 2\nb 1 2\na 1 3\nb 1 3\n", nil, "two wrote at once"},
		"a line is lost":   {"a 1 1\na 1 3\n", nil, "two wrote at once"},
		"a turn is lost":   {"a 1 1\na 1 2\na 1 3\na 3 1\n", nil, "turn 2 was lost"},
		"half overwritten": {"a 1 1\n1 2\n", nil, `line 2 is "1 2\n"`},
	} {
		got, err := parseTurns(c.log)
		if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: error %v, want %q", name, err, c.err)
		}
		if c.want != nil && !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
