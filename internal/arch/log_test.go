package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What went wrong has one key in the log, so that one filter finds it.
func TestErrorsHaveOneLogKey(t *testing.T) {
	others := []string{`"err"`, `"cause"`, `"failure"`, `"problem"`}
	methods := []string{"Debug", "Info", "Warn", "Error", "With", "Any", "String"} // of a logger, and slog's
	lines := 0
	err := filepath.WalkDir(filepath.Join("..", ".."), func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		set := token.NewFileSet()
		f, err := parser.ParseFile(set, file, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if s, ok := call.Fun.(*ast.SelectorExpr); !ok || !slices.Contains(methods, s.Sel.Name) {
				return true
			}
			for _, arg := range call.Args {
				l, ok := arg.(*ast.BasicLit)
				if !ok {
					continue
				}
				if l.Value == `"error"` {
					lines++
				}
				if slices.Contains(others, l.Value) {
					t.Errorf("%s: the log's key %s: want \"error\"", set.Position(l.Pos()), l.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines < 20 {
		t.Errorf("found %d errors in the log", lines)
	}
}
