package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// declared lists the functions, methods and types of the module, as
// package.Name and package.Type.Method.
func declared(t *testing.T) (names, packages map[string]bool) {
	t.Helper()
	names, packages = make(map[string]bool), make(map[string]bool)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg := f.Name.Name
		packages[pkg] = true
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				names[pkg+"."+receiver(decl)+decl.Name.Name] = true
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.TypeSpec:
						names[pkg+"."+spec.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range spec.Names {
							names[pkg+"."+n.Name] = true
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, packages
}

// receiver is "Type." for a method.
func receiver(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return ""
	}
	typ := f.Recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	if generic, ok := typ.(*ast.IndexExpr); ok {
		typ = generic.X
	}
	if id, ok := typ.(*ast.Ident); ok {
		return id.Name + "."
	}
	return ""
}

// The walk through the code is of this code.
func TestArchitectureNamesWhatExists(t *testing.T) {
	names, packages := declared(t)
	mentions := regexp.MustCompile("`(([a-z]+)\\.[A-Za-z]+(?:\\.[A-Za-z]+)?)`").FindAllStringSubmatch(read(t, "docs/ARCHITECTURE.md"), -1)
	if len(mentions) < 30 {
		t.Fatalf("it names %d functions only", len(mentions))
	}
	for _, m := range mentions {
		if packages[m[2]] && !names[m[1]] {
			t.Errorf("docs/ARCHITECTURE.md speaks of %s, which is not there", m[1])
		}
	}
}

// CONTRIBUTING.md sends its readers to files that exist. What has no directory is beside the file named
// before it.
func TestContributingNamesWhatExists(t *testing.T) {
	paths := regexp.MustCompile("`((?:[a-z]+/)+[a-z_]*(?:\\.go)?|[a-z_]+\\.go)`").FindAllStringSubmatch(read(t, "CONTRIBUTING.md"), -1)
	if len(paths) < 30 {
		t.Fatalf("it names %d files only", len(paths))
	}
	dir := ""
	for _, m := range paths {
		path := m[1]
		if path == "testing/synctest" { // Go's
			continue
		}
		if strings.Contains(path, "/") {
			if dir = path; strings.HasSuffix(path, ".go") {
				dir = filepath.Dir(path)
			}
		} else {
			path = filepath.Join(dir, path)
		}
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Errorf("CONTRIBUTING.md speaks of %s: %v", m[1], err)
		}
	}
}
