package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/lockfs/lockfs/"

// pkg is a package of the module without its tests.
type pkg struct {
	imports map[string]string // import path → a file that has it
	docs    int               // files with a package comment
}

func load(t *testing.T) map[string]*pkg {
	t.Helper()
	pkgs := make(map[string]*pkg)
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && file != root {
			if _, err := os.Stat(filepath.Join(file, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own
			}
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(rel))
		p := pkgs[dir]
		if p == nil {
			p = &pkg{imports: make(map[string]string)}
			pkgs[dir] = p
		}
		if hasDoc(f) {
			p.docs++
		}
		for _, i := range f.Imports {
			name, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			p.imports[name] = rel
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs) < 8 {
		t.Fatalf("found %d packages only", len(pkgs))
	}
	return pkgs
}

func hasDoc(f *ast.File) bool {
	return f.Doc != nil && (strings.HasPrefix(f.Doc.Text(), "Package ") || strings.HasPrefix(f.Doc.Text(), "Command "))
}

// Each technology has one door.
func TestDoors(t *testing.T) {
	doors := map[string][]string{
		"github.com/hanwen/go-fuse/":              {"fs", "integration/lab"},
		"go.etcd.io/":                             {"lockmgr/etcdlock", "internal/embedetcd", "bench/locks", "integration/lab", "integration/history"},
		"google.golang.org/grpc":                  {"internal/csi", "lockmgr/etcdlock", "internal/embedetcd", "integration/lab"},
		"github.com/container-storage-interface/": {"internal/csi"},
		"go.uber.org/zap":                         {"lockmgr/etcdlock", "internal/embedetcd", "integration/lab"},
		"github.com/spf13/":                       {"cmd/lockfs"},
		"github.com/prometheus/":                  {"internal/metrics"},
		"k8s.io/":                                 {"internal/kubeconf", "internal/pods", "lockmgr/kubelease", "internal/kubetest", "integration/lab"},
		"github.com/go-logr/":                     {"internal/pods", "lockmgr/kubelease"},
		"go.yaml.in/":                             {"internal/config"},
		"github.com/fxamacker/":                   {"internal/journal"},
		module + "renew":                          {"lockmgr", "cmd/lockfs", "internal/serve", "internal/config", "internal/metrics", "bench/fs", "bench/locks", "integration/lab"},
		module + "lockmgr/etcdlock":               {"cmd/lockfs", "bench/locks", "integration/lab"},
		module + "lockmgr/kubelease":              {"cmd/lockfs", "bench/locks", "integration/lab"},
		module + "internal/embedetcd":             {"cmd/lockfs"},
		module + "fs":                             {"cmd/lockfs", "internal/serve", "internal/config", "internal/metrics", "bench/fs", "bench/locks"},
		module + "lockmgr/lockmgrtest":            {"bench/fs"},
	}
	for dir, p := range load(t) {
		for name, file := range p.imports {
			for prefix, allowed := range doors {
				if strings.HasPrefix(name, prefix) && !slices.Contains(allowed, dir) {
					t.Errorf("%s imports %s: only %v may", file, name, allowed)
				}
			}
		}
	}
}

// What is below knows nothing of what is above.
func TestLayers(t *testing.T) {
	may := map[string][]string{
		"renew":                     {"internal/boottime"},
		"internal/boottime":         {},
		"lockmgr":                   {"renew", "lockmgr/advisory", "internal/boottime", "internal/journal", "internal/retry"},
		"lockmgr/advisory":          {},
		"lockmgr/etcdlock":          {"lockmgr", "lockmgr/internal/lifetime", "internal/journal", "internal/retry"},
		"lockmgr/kubelease":         {"lockmgr", "lockmgr/internal/lifetime", "internal/journal", "internal/retry", "internal/boottime", "internal/kubeconf"},
		"internal/retry":            {},
		"lockmgr/internal/lifetime": {"lockmgr", "internal/retry"},
		"policy":                    {},
		"fs":                        {"lockmgr", "lockmgr/advisory", "policy", "internal/journal", "internal/procid", "internal/volume"},
		"internal/procid":           {},
		"internal/volume":           {"lockmgr", "policy"},
		"internal/mounts":           {},
		"internal/journal":          {},
		"internal/supervise":        {"internal/journal"},
	}
	pkgs := load(t)
	for dir, allowed := range may {
		p := pkgs[dir]
		if p == nil {
			t.Errorf("no package %s: the rule is out of date", dir)
			continue
		}
		for name, file := range p.imports {
			if own, ok := strings.CutPrefix(name, module); ok && !slices.Contains(allowed, own) {
				t.Errorf("%s imports %s: %s may import only %v of ours", file, own, dir, allowed)
			}
		}
	}
}

func TestOnePackageDocEach(t *testing.T) {
	for dir, p := range load(t) {
		if p.docs != 1 {
			t.Errorf("%s has %d package comments, want 1", dir, p.docs)
		}
	}
}
