package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// calls returns which functions of package time a package calls, and where.
func calls(t *testing.T, dir string) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package %s: %v", dir, err)
	}
	found := make(map[string]string)
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "time" {
					found[s.Sel.Name] = set.Position(s.Pos()).String()
				}
			}
			return true
		})
	}
	return found
}

// Whether a write may be issued is judged by CLOCK_BOOTTIME alone. The wall clock
// is set by people; and time.Now's monotonic reading stops while the machine sleeps.
func TestDeadlinesGoByBootTime(t *testing.T) {
	found := calls(t, "renew")
	for _, name := range []string{"Now", "Since", "Until", "Unix", "Time"} {
		if where, ok := found[name]; ok {
			t.Errorf("%s: time.%s in the package of the deadlines", where, name)
		}
	}
}

// A time without a monotonic reading, which came from a file or a lock service,
// is for people to read. Compared with our wall clock it moves when somebody sets that.
func TestWallTimeDecidesNothing(t *testing.T) {
	for _, dir := range []string{"renew", "lockmgr", "lockmgr/etcdlock", "internal/boottime", "internal/serve", "internal/lifeline"} {
		found := calls(t, dir)
		for _, name := range []string{"Unix", "UnixMilli", "UnixMicro", "UnixNano", "Parse", "Date"} {
			if where, ok := found[name]; ok {
				t.Errorf("%s: time.%s", where, name)
			}
		}
	}
}
