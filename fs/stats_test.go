package fs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Each request that FS answers is counted: counting has every method of the
// kernel's that FS has.
func TestEveryRequestIsCounted(t *testing.T) {
	methods := make(map[string][]string) // by receiver
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			recv := fn.Recv.List[0].Type
			if p, ok := recv.(*ast.StarExpr); ok {
				recv = p.X
			}
			if id, ok := recv.(*ast.Ident); ok {
				methods[id.Name] = append(methods[id.Name], fn.Name.Name)
			}
		}
	}
	notCounted := []string{"String", "Init", "Forget"} // not answered
	kernel := reflect.TypeFor[fuse.RawFileSystem]()
	for i := range kernel.NumMethod() {
		name := kernel.Method(i).Name
		if slices.Contains(methods["FS"], name) && !slices.Contains(methods["counting"], name) && !slices.Contains(notCounted, name) {
			t.Errorf("requests for %s are not counted", name)
		}
	}
	for r, name := range requestNames {
		if name == "" {
			t.Errorf("request %d has no name", r)
		}
	}
}

func TestCounts(t *testing.T) {
	f := &FS{locker: locker{files: files{nodes: newNodes(-1, inode{}, NewPool())}}}
	f.gates = f.newGates(newBudget(backlogSize), f.log)
	for s, want := range map[unix.Errno]string{
		0: "ok", unix.EBUSY: "contended", unix.EAGAIN: "contended", unix.EDEADLK: "contended", unix.ESTALE: "stale", unix.EINTR: "interrupted",
		unix.ENOLCK: "unavailable", unix.EIO: "io_error", unix.EDQUOT: "full", unix.EMFILE: "exhausted", unix.ENOENT: "refused", unix.EPERM: "refused",
	} {
		before := f.counted("write", want)
		if got := f.count(requestWrite, fuse.Status(s)); got != fuse.Status(s) {
			t.Errorf("%v became %v", s, got)
		}
		if n := f.counted("write", want); n != before+1 {
			t.Errorf("%v counts %d as %s, want %d", s, n, want, before+1)
		}
	}
}

// Every result that a metric counts is documented.
func TestResultsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("../docs/METRICS.md")
	if err != nil {
		t.Fatal(err)
	}
	for r, name := range resultNames {
		if name == "" || !strings.Contains(string(doc), "| `"+name+"` |") {
			t.Errorf("result %d, %q, is not in docs/METRICS.md", r, name)
		}
	}
}

func (f *FS) counted(request, result string) uint64 {
	for _, c := range f.Stats().Requests {
		if c.Request == request && c.Result == result {
			return c.Count
		}
	}
	return 0
}

func BenchmarkCount(b *testing.B) {
	f := &FS{}
	for b.Loop() {
		f.count(requestWrite, fuse.OK)
	}
}
