package programs

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

// wheel is a Python package of a name, with some bytes that do not compress.
func wheel(t *testing.T, name string, size int) []byte {
	t.Helper()
	noise := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = random.Read(noise)
	info := name + "-1.0.dist-info/"
	files := []struct{ name, text string }{
		{name + "/__init__.py", ""},
		{name + "/noise", string(noise)},
		{info + "METADATA", "Metadata-Version: 2.1\nName: " + name + "\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: lockfs\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256([]byte(f.text))
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.text))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	files = append(files, struct{ name, text string }{info + "RECORD", record.String()})
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range files {
		w, err := z.Create(f.name)
		if err == nil {
			_, err = w.Write([]byte(f.text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Several pip on each of two nodes share a cache: each gets what it asked for, and what one has
// downloaded none downloads again. (docs/how-to/tool-caches.md)
func TestPipCacheOfTwoMounts(t *testing.T) {
	lab.Over(t, testPipCacheOfTwoMounts, lab.Local, lab.OverClients.ForLong())
}

func testPipCacheOfTwoMounts(t *testing.T, on lab.Setup) {
	if exec.Command(debianPython, "-m", "pip", "--version").Run() != nil {
		t.Skip("pip is not installed")
	}
	wheels := make(map[string][]byte)
	var names []string
	for i := range 6 {
		name := fmt.Sprint("demo", i)
		names = append(names, name)
		wheels[name] = wheel(t, name, 100_000*(i+1))
	}
	var downloads atomic.Int64
	index := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := strings.Split(strings.Trim(r.URL.Path, "/"), "/")[1]
		if strings.HasPrefix(r.URL.Path, "/files/") {
			downloads.Add(1)
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Header().Set("Cache-Control", "max-age=86400")
			_, _ = w.Write(wheels[name])
			return
		}
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<a href="/files/%s/%[1]s-1.0-py3-none-any.whl#sha256=%x">%[1]s-1.0-py3-none-any.whl</a>`, name, sha256.Sum256(wheels[name]))
	}))
	defer index.Close()

	v := on.NewVolume(t, "--rule", "*.lock lock wait=1h") // --trusted-host: pip does not cache what came by http otherwise
	a, b := v.Mount("a"), v.Mount("b")
	download := func() {
		lab.Everywhere(2, func(m *lab.Mount, n int) {
			dir := filepath.Join(t.TempDir(), fmt.Sprint(m.Name, n))
			lab.Run(t, debianPython, append([]string{"-m", "pip", "--isolated", "--disable-pip-version-check", "--quiet", "--trusted-host", "127.0.0.1", "--cache-dir", m.Path("pip"),
				"download", "--no-deps", "--index-url", index.URL + "/simple", "--dest", dir}, names...)...)
			for _, name := range names {
				got, err := os.ReadFile(filepath.Join(dir, name+"-1.0-py3-none-any.whl"))
				if err != nil || !bytes.Equal(got, wheels[name]) {
					t.Errorf("pip %d on %s: %s has %d bytes, want %d: %v", n, m.Name, name, len(got), len(wheels[name]), err)
				}
			}
		}, a, b)
	}
	download()
	first := downloads.Load()
	if first == 0 {
		t.Fatal("nothing was downloaded: the test tries nothing")
	}
	download()
	if again := downloads.Load() - first; again != 0 {
		t.Errorf("%d of %d files were downloaded again: the cache was not used", again, len(names))
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}
