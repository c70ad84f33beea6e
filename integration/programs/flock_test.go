package programs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockfs/lockfs/integration/lab"
)

// newFlocks returns a volume as docs/how-to/flock.md has it: what locks by itself takes no lock
// when it is opened, and its locks are the cluster's.
func newFlocks(t *testing.T, on lab.Setup, rules ...string) *lab.Volume {
	// A lock that is only tried waits for the lock service for an eighth of the TTL.
	args := []string{"--flock", "cluster", "--wait", "-1", "--ttl", "1m"}
	for _, r := range rules {
		args = append(args, "--rule", r)
	}
	v := on.NewVolume(t, args...)
	return v
}

// flock -n fails at once while another node has the lock, whichever way the script opens its
// lock file, and runs as soon as it is free. (docs/how-to/flock.md)
func TestFlockCommand(t *testing.T) { lab.Over(t, testFlockCommand, lab.Local, lab.InLeases.ForLong()) }

func testFlockCommand(t *testing.T, on lab.Setup) {
	needs(t, "flock")
	v := newFlocks(t, on, "*.lock nolock")
	a, b := v.Mount("a"), v.Mount("b")
	holder := exec.Command("flock", a.Path("x.lock"), "cat")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the first has the lock", func() bool { return len(v.LS()) == 1 })
	for _, script := range []string{
		fmt.Sprintf("flock -n -E 9 %s true", b.Path("x.lock")),
		fmt.Sprintf("exec 8>>%s; flock -n -E 9 8", b.Path("x.lock")),
		fmt.Sprintf("exec 8>%s; flock -n -s -E 9 8", b.Path("x.lock")),
	} {
		out, err := exec.Command("sh", "-c", script).CombinedOutput()
		if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 9 {
			t.Errorf("%s: %v: %s; want exit status 9", script, err, out)
		}
	}
	next := exec.Command("flock", b.Path("x.lock"), "true")
	if err := next.Start(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "the next waits", func() bool { return len(v.LS()) == 2 })
	in.Close()
	if err := holder.Wait(); err != nil {
		t.Error(err)
	}
	if err := next.Wait(); err != nil {
		t.Error(err)
	}
}

// A program that keeps a file open on each node counts in it, under Python's or Perl's locks.
// (docs/how-to/flock.md)
func TestFlockOfScripts(t *testing.T) {
	lab.Over(t, testFlockOfScripts, lab.Local, lab.InLeases.ForLong())
}

func testFlockOfScripts(t *testing.T, on lab.Setup) {
	v := newFlocks(t, on, "*.count nolock")
	a, b := v.Mount("a"), v.Mount("b")
	const rounds = 20
	for program, script := range map[string]string{
		"python3": `import fcntl, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
for i in range(int(sys.argv[2])):
    fcntl.lockf(f, fcntl.LOCK_EX)
    n = int(os.pread(f, 20, 0))
    os.pwrite(f, b"%06d" % (n + 1), 0)
    fcntl.lockf(f, fcntl.LOCK_UN)
`,
		"perl": `use Fcntl qw(:flock :seek);
open(my $f, "+<", $ARGV[0]) or die;
for (1 .. $ARGV[1]) {
    flock($f, LOCK_EX) or die $!;
    sysseek($f, 0, SEEK_SET); sysread($f, my $n, 20);
    sysseek($f, 0, SEEK_SET); syswrite($f, sprintf("%06d", $n + 1));
    flock($f, LOCK_UN) or die $!;
}
`,
	} {
		t.Run(program, func(t *testing.T) {
			needs(t, program)
			flag := map[string]string{"python3": "-c", "perl": "-e"}[program]
			v.Write(program+".count", "000000")
			lab.Everywhere(2, func(m *lab.Mount, _ int) {
				lab.Run(t, program, flag, script, m.Path(program+".count"), fmt.Sprint(rounds))
			}, a, b)
			if got, want := v.Read(program+".count"), fmt.Sprintf("%06d", 4*rounds); got != want {
				t.Errorf("counted to %s, want %s", got, want)
			}
		})
	}
}

// sqlite of several nodes works on one database at once, by its own locks: readers beside each
// other, and a writer among them. (docs/how-to/flock.md)
func TestSqliteByItsOwnLocks(t *testing.T) {
	lab.Over(t, testSqliteByItsOwnLocks, lab.Local, lab.InLeases.ForLong(), lab.OnNetworkVolume)
}

func testSqliteByItsOwnLocks(t *testing.T, on lab.Setup) {
	needs(t, "sqlite3")
	v := newFlocks(t, on, "/db/** nolock")
	a, b := v.Mount("a"), v.Mount("b")
	lab.Run(t, "mkdir", a.Path("db"))
	lab.Run(t, "sqlite3", a.Path("db/x"), "CREATE TABLE t (x UNIQUE)")
	// It has the database open, and a read transaction, and keeps no reader out.
	reader := exec.Command("sqlite3", a.Path("db/x"))
	in, err := reader.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	reader.Stdout = &out
	if err := reader.Start(); err != nil {
		t.Fatal(err)
	}
	read := filepath.Join(v.Dir, "read")
	fmt.Fprintf(in, "BEGIN; SELECT count(*) FROM t;\n.system touch %s\n", read)
	lab.Eventually(t, "the reader has its lock", func() bool { _, err := os.Stat(read); return err == nil })
	if got := lab.Output(t, "sqlite3", b.Path("db/x"), "SELECT count(*) FROM t"); got != "0\n" {
		t.Errorf("beside a reader: %q", got)
	}
	if got, err := exec.Command("sqlite3", b.Path("db/x"), "INSERT INTO t VALUES ('too early')").CombinedOutput(); err == nil || !strings.Contains(string(got), "locked") {
		t.Errorf("a writer beside a reader: %v: %s; want 'database is locked'", err, got)
	}
	in.Close()
	if err := reader.Wait(); err != nil {
		t.Error(err)
	}
	const workers, rounds = 2, 8
	lab.Everywhere(workers, func(m *lab.Mount, w int) {
		for i := range rounds {
			lab.Run(t, "sqlite3", "-cmd", ".timeout 60000", m.Path("db/x"),
				fmt.Sprintf("BEGIN IMMEDIATE; INSERT INTO t VALUES ('%s %d %d'); INSERT INTO t SELECT count(*) FROM t; COMMIT", m.Name, w, i))
		}
	}, a, b)
	want := fmt.Sprintf("ok\n%d\n", 2*2*workers*rounds)
	// In the volume itself it is read without locks: NFSv3's ask for a statd with each client.
	for _, path := range []string{a.Path("db/x"), b.Path("db/x"), "file:" + v.InSource("db/x") + "?immutable=1"} {
		if got := lab.Output(t, "sqlite3", path, "PRAGMA integrity_check; SELECT count(*) FROM t"); got != want {
			t.Errorf("%s: sqlite says %q, want %q", path, got, want)
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}
