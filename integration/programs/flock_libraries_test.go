package programs

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

// debianPython is the Python that has Debian's modules.
const debianPython = "/usr/bin/python3"

// lockLibrary is a way in which programs lock by themselves.
type lockLibrary struct {
	name    string
	program string   // that runs the scripts
	flag    string   // before a script
	needs   []string // a command that works where the library is installed
	holds   string   // locks $1, prints a line, and waits for its input to end
	refused string   // succeeds if it does not get the lock of $1
	counts  string   // adds 1 to the number in $2, $3 times, each under the lock of $1
}

const pythonCounts = `
    with open(sys.argv[2], "r+") as f:
        n = int(f.read()); f.seek(0); f.write("%06d" % (n + 1))
`

var lockLibraries = []lockLibrary{
	{
		name: "filelock", program: debianPython, flag: "-c", needs: []string{debianPython, "-c", "import filelock"},
		holds: "import sys, filelock\nwith filelock.FileLock(sys.argv[1]):\n    print(flush=True); sys.stdin.read()",
		refused: `import sys, filelock
try:
    filelock.FileLock(sys.argv[1]).acquire(timeout=0)
except filelock.Timeout:
    sys.exit(0)
sys.exit(3)`,
		counts: "import sys, filelock\nlock = filelock.FileLock(sys.argv[1])\nfor i in range(int(sys.argv[3])):\n  with lock:" + pythonCounts,
	},
	{
		name: "portalocker", program: debianPython, flag: "-c", needs: []string{debianPython, "-c", "import portalocker"},
		holds: "import sys, portalocker\nwith portalocker.Lock(sys.argv[1]):\n    print(flush=True); sys.stdin.read()",
		refused: `import sys, portalocker
try:
    portalocker.Lock(sys.argv[1], fail_when_locked=True).acquire()
except portalocker.exceptions.AlreadyLocked:
    sys.exit(0)
sys.exit(3)`,
		counts: "import sys, portalocker\nfor i in range(int(sys.argv[3])):\n  with portalocker.Lock(sys.argv[1], timeout=60, check_interval=0.01):" + pythonCounts,
	},
	{
		name: "lockfile", program: "sh", flag: "-c", needs: []string{"sh", "-c", "command -v lockfile"},
		holds:   `lockfile "$0" && echo && cat && rm -f "$0"`,
		refused: `! lockfile -r 0 "$0" 2>/dev/null`,
		counts: `for i in $(seq "$2"); do
	lockfile -1 "$0" && n=$(cat "$1") && printf "%06d" "$(expr "$n" + 1)" > "$1"; rm -f "$0"
done`,
	},
}

// What programs lock with libraries, or with a file that is there or not, excludes programs on other
// nodes. With --flock local the first two do not. (docs/how-to/flock.md)
func TestFlockOfLibraries(t *testing.T) {
	lab.Over(t, testFlockOfLibraries, lab.Local, lab.InLeases.ForLong())
}

func testFlockOfLibraries(t *testing.T, on lab.Setup) {
	cluster := newFlocks(t, on, "*.lock nolock")
	local := on.NewVolume(t, "--flock", "local", "--rule", "*.lock nolock")
	a, b, alone, other := cluster.Mount("a"), cluster.Mount("b"), local.Mount("a"), local.Mount("b")
	for _, l := range lockLibraries {
		t.Run(l.name, func(t *testing.T) {
			if exec.Command(l.needs[0], l.needs[1:]...).Run() != nil {
				t.Skip(l.name, " is not installed")
			}
			t.Log("another node is refused while one has the lock")
			refused := func(holds, tries *lab.Mount) error {
				holder := exec.Command(l.program, l.flag, l.holds, holds.Path(l.name+".lock"))
				in, err := holder.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				out, err := holder.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := holder.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() {
					in.Close()
					if err := holder.Wait(); err != nil {
						t.Error(err)
					}
				}()
				if _, err := out.Read(make([]byte, 1)); err != nil {
					t.Fatal("no lock: ", err)
				}
				return exec.Command(l.program, l.flag, l.refused, tries.Path(l.name+".lock")).Run()
			}
			if err := refused(a, b); err != nil {
				t.Errorf("the other node is not refused: %v", err)
			}
			if err := refused(alone, other); err == nil && l.program == debianPython {
				t.Error("with --flock local the other node is refused as well: nothing is shown")
			}

			t.Log("both nodes count")
			const rounds = 10
			cluster.Write(l.name+".count", "000000")
			lab.Everywhere(1, func(m *lab.Mount, _ int) {
				lab.Run(t, l.program, l.flag, l.counts, m.Path(l.name+".lock"), m.Path(l.name+".count"), fmt.Sprint(rounds))
			}, a, b)
			if got, want := strings.TrimSpace(cluster.Read(l.name+".count")), fmt.Sprintf("%06d", 2*rounds); got != want {
				t.Errorf("counted to %s, want %s", got, want)
			}
		})
	}
}
