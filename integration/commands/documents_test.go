package commands

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// documented are the documents whose commands are pasted here, with what they print:
// the blocks behind a comment with the test's name, one after the other.
var documented = []struct {
	document string
	mounted  bool // the document takes a view at /mnt/shared for granted
	stdout   string
	stderr   string
}{
	{
		document: "README.md",
		stdout:   `(?s) held .* waiting .*\nfirst\nsecond\n$`,
	},
	{
		document: "docs/tutorial/laptop.md",
		stdout: `(?s) held .* waiting .*\nfirst\nsecond\n` + // a writer waits
			`broken: log was held by .*first\nsecond\nfourth\n` +
			`exit status 75\n` +
			`first\nsecond\nfourth\n$`,
		stderr: `(?s)Resource temporarily unavailable.*Input/output error.*Transport endpoint is not connected`,
	},
	{
		document: "docs/how-to/exec.md",
		mounted:  true,
		stdout:   `^backup\.lock .* held .*\nexit status 75\nexit status 0\ntoken [1-9][0-9]*\n$`,
	},
	{
		document: "docs/how-to/break.md",
		mounted:  true,
		stdout:   `(?s) held .*broken: report was held by .*\n0\n$`,
		stderr:   `Input/output error`,
	},
}

// What documents do by hand works as it is pasted.
func TestDocuments(t *testing.T) {
	t.Parallel()
	for _, d := range documented {
		t.Run(filepath.Base(d.document), func(t *testing.T) {
			t.Parallel()
			v := lab.NewVolume(t)
			view := filepath.Join(v.Dir, "view")
			if d.mounted {
				view = v.Mount("a").Dir
			}
			script := strings.NewReplacer("make build\n", "", "/tmp/", v.Dir+"/", "/mnt/shared", view,
				// A document that shows times in seconds has them for a machine with nothing else to do.
				"sleep 10;", "until [ -e go ]; do sleep 0.1; done;", "& sleep 2 ", "& "+untilListed("held"), "; sleep 2 ", "; "+untilListed("waiting"), "wait $last;", "touch go; wait $last;",
			).Replace(pasted(t, d.document))
			bin := filepath.Join(v.Dir, "bin")
			if err := os.Mkdir(bin, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(lab.Program, filepath.Join(bin, "lockfs")); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithTimeout(t.Context(), 2*lab.CallTimeout)
			defer stop()
			// With jobs, as a terminal has.
			cmd := exec.CommandContext(ctx, "bash", "-mc", "trap 'kill $(jobs -p) 2>/dev/null' EXIT\n"+script+"wait\n")
			cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
			cmd.Dir = v.Dir // commands are bin/lockfs, or lockfs where it is installed
			// With --wait 0 and O_NONBLOCK the lock service has an eighth of the TTL to answer.
			cmd.Env = append(v.Env, "PATH="+bin+":"+os.Getenv("PATH"), "LOCKFS_TTL="+patientTTL)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if err != nil || !regexp.MustCompile(d.stdout).Match(stdout.Bytes()) || !regexp.MustCompile(d.stderr).Match(stderr.Bytes()) {
				t.Errorf("%v: %s\n%s", err, &stdout, &stderr)
			}
		})
	}
}

// untilListed is a command that waits until 'lockfs ls' lists a lock in that state.
func untilListed(state string) string {
	return "until lockfs ls view1 | grep -q " + state + "; do sleep 0.1; done "
}

// pasted returns the commands of a document.
func pasted(t *testing.T, document string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", document))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)<!-- TestDocuments -->\n```\n(.*?)```").FindAllSubmatch(text, -1)
	if blocks == nil {
		t.Fatalf("%s has no such commands", document)
	}
	var script strings.Builder
	for _, b := range blocks {
		script.Write(b[1])
	}
	return script.String()
}
