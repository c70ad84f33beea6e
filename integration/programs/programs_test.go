package programs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
	"github.com/lockfs/lockfs/lockmgr"
)

// needs skips a test of a program that is not installed.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skip(program, " is not installed")
	}
}

// Several sqlite3 on each of two mounts write to one database, in each of
// sqlite's journal modes: each insert is there, and the database is sound. A
// process has the database's lock for as long as it has it open, so that modes
// which trust sqlite's own locks, or shared memory (wal), do not meet another mount.
func TestSqliteJournalModes(t *testing.T) {
	lab.Over(t, testSqliteJournalModes, lab.Local, lab.OnNetworkVolume)
}

func testSqliteJournalModes(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--name-wait", "1m") // sqlite makes its journal anew each time
	a, b := v.Mount("a"), v.Mount("b")
	for _, mode := range []string{"delete", "truncate", "persist", "memory", "wal", "off"} {
		t.Run(mode, func(t *testing.T) {
			db := mode + ".db"
			pragma := "PRAGMA journal_mode=" + mode
			if got := lab.Output(t, "sqlite3", a.Path(db), pragma+"; CREATE TABLE t (x UNIQUE)"); got != mode+"\n" {
				t.Fatalf("the journal mode is %q", got)
			}
			const workers, rounds = 2, 5
			lab.Everywhere(workers, func(m *lab.Mount, w int) {
				for i := range rounds {
					lab.Run(t, "sqlite3", "-cmd", ".timeout 60000", m.Path(db),
						fmt.Sprintf("%s; BEGIN; INSERT INTO t VALUES ('%s %d %d'); INSERT INTO t VALUES ('%[2]s %d %d too'); COMMIT", pragma, m.Name, w, i))
				}
			}, a, b)
			want := fmt.Sprintf("ok\n%d\n", 2*2*workers*rounds)
			paths := []string{b.Path(db)}
			if !v.HasClients() { // a client of a network volume need not map files, as wal does
				paths = append(paths, v.InSource(db))
			}
			for _, path := range paths {
				if got := lab.Output(t, "sqlite3", path, "PRAGMA integrity_check; SELECT count(*) FROM t"); got != want {
					t.Errorf("%s: sqlite says %q, want %q", path, got, want)
				}
			}
		})
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// A repository that git works on through one mount is whole on the other:
// commits, packs and what a clone takes over.
func TestGitOnTwoMounts(t *testing.T) {
	lab.Over(t, testGitOnTwoMounts, lab.Local, lab.OnNetworkVolume)
}

func testGitOnTwoMounts(t *testing.T, on lab.Setup) {
	needs(t, "git")
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	git := func(dir string, args ...string) string {
		t.Helper()
		return lab.Output(t, "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "safe.directory=*",
			"-c", "gc.auto=0", "-c", "commit.gpgsign=false"}, args...)...)
	}
	repo := a.Path("repo")
	git(a.Dir, "init", "-q", repo)
	const files = 20
	for round := range 3 {
		for i := range files {
			if i%(round+1) == 0 {
				path := filepath.Join(repo, fmt.Sprintf("file%d", i))
				if err := os.WriteFile(path, []byte(strings.Repeat(fmt.Sprintln(round, i), 100)), 0o644); err != nil {
					t.Fatal(err)
				}
			}
		}
		git(repo, "add", ".")
		git(repo, "commit", "-q", "-m", fmt.Sprint("round ", round))
	}
	git(repo, "gc", "-q")
	git(b.Path("repo"), "fsck", "--strict")
	git(b.Dir, "clone", "-q", "--no-local", b.Path("repo"), b.Path("clone"))
	clone := a.Path("clone")
	git(clone, "fsck", "--strict")
	if log := git(clone, "log", "--oneline"); strings.Count(log, "\n") != 3 {
		t.Errorf("the clone has the log %q", log)
	}
	if status := git(clone, "status", "--porcelain"); status != "" {
		t.Errorf("the clone is changed: %s", status)
	}
	lab.Output(t, "diff", "-r", "--exclude=.git", repo, clone)
}

// seemsCorrupt is what gc says of a commit that is sound. A fetch writes commits before their parents:
// gc looks for a parent in vain, then finds that it is there, and takes it for corrupt.
var seemsCorrupt = regexp.MustCompile(`fatal: loose object ([0-9a-f]{40}) \(stored in .*\) is corrupt`)

// One node fetches into a repository and commits there while another one collects garbage: nothing
// is lost, and the repository is sound. A git can fail because gc removes the directory that it has
// just made for an object, as on a local disk, and succeeds later. (docs/how-to/flock.md)
func TestGitFetchBesideGC(t *testing.T) { lab.Over(t, testGitFetchBesideGC, lab.Local) }

func testGitFetchBesideGC(t *testing.T, on lab.Setup) {
	needs(t, "git")
	v := on.NewVolume(t, "--wait", "-1", "--name-wait", lab.CallTimeout.String()) // a creation waits for a recall
	a, b := v.Mount("a"), v.Mount("b")
	try := func(dir string, args ...string) (string, error) {
		// gc and commit wait for each other's locks of refs for as long as it takes: the default is 100 ms.
		out, err := handsOn(t, "git", append([]string{"-C", dir, "-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "safe.directory=*",
			"-c", "gc.auto=0", "-c", "commit.gpgsign=false",
			"-c", "core.filesRefLockTimeout=-1", "-c", "core.packedRefsTimeout=-1"}, args...)...)
		if err != nil {
			err = fmt.Errorf("git %s: %w\n%s", strings.Join(args, " "), err, out)
		}
		return out, err
	}
	git := func(dir string, args ...string) string {
		t.Helper()
		out, err := try(dir, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	upstream := filepath.Join(t.TempDir(), "upstream")
	git(a.Dir, "init", "-q", "-b", "main", upstream)
	git(upstream, "commit", "-q", "--allow-empty", "-m", "first")
	git(a.Dir, "clone", "-q", "--no-local", upstream, a.Path("repo"))
	const rounds = 8
	for round := range rounds {
		for branch := range 5 {
			git(upstream, "checkout", "-q", "-B", fmt.Sprintf("branch%d-%d", round, branch))
			git(upstream, "commit", "-q", "--allow-empty", "-m", fmt.Sprint(round, branch))
		}
		var both sync.WaitGroup
		both.Go(func() {
			out, err := try(a.Path("repo"), "gc", "-q")
			for found := seemsCorrupt.FindStringSubmatch(out); found != nil; found = seemsCorrupt.FindStringSubmatch(out) {
				t.Log("again: ", err)
				if _, err := try(a.Path("repo"), "cat-file", "commit", found[1]); err != nil {
					t.Error(err)
					return
				}
				out, err = try(a.Path("repo"), "gc", "-q")
			}
			if err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			for _, args := range [][]string{{"fetch", "-q"}, {"commit", "-q", "--allow-empty", "-m", fmt.Sprint("mine ", round)}} {
				out, err := try(b.Path("repo"), args...)
				for strings.Contains(out, "unable to create temporary file: No such file or directory") {
					t.Log("again: ", err)
					out, err = try(b.Path("repo"), args...)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
		both.Wait()
	}
	for _, m := range []*lab.Mount{a, b} {
		git(m.Path("repo"), "fsck", "--strict")
		if n := strings.Count(git(m.Path("repo"), "branch", "-r", "--list", "origin/branch*"), "\n"); n != 5*rounds {
			t.Errorf("%s: %d branches, want %d", m.Name, n, 5*rounds)
		}
		if n := strings.Count(git(m.Path("repo"), "log", "--oneline"), "\n"); n != 1+rounds {
			t.Errorf("%s: %d commits, want %d", m.Name, n, 1+rounds)
		}
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}

// What tar and rsync bring into a view is what they were given: modes, owners,
// times, links of both kinds, holes.
func TestArchives(t *testing.T) {
	t.Parallel()
	v := lab.NewVolume(t)
	a, b := v.Mount("a"), v.Mount("b")
	from := filepath.Join(v.Dir, "from")
	lab.Output(t, "sh", "-ec", `
		umask 022; mkdir -p "$1/d/e" "$1/sticky"; cd "$1"
		seq 10000 > d/seq; ln d/seq d/hard; ln -s ../d/seq d/e/soft; ln -s nowhere dangling; mkfifo fifo
		truncate -s 5M holes; echo x | dd of=holes bs=1 seek=3000000 conv=notrunc status=none
		chown 1000:2000 d/seq; chmod 6750 d/seq; chmod 1777 sticky; chmod 2775 d/e; : > "d/a name
of two lines"; touch -d '2001-02-03 04:05:06.789' d/e holes; touch -h -d 2002-02-02 dangling
	`, "sh", from)
	archive := filepath.Join(v.Dir, "archive.tar")
	lab.Output(t, "tar", "-C", from, "-S", "-cpf", archive, ".")
	for _, c := range []struct{ program, script string }{
		{"tar", `tar -C "$2" --numeric-owner -xpf "$3"`},
		{"rsync", `rsync -aHS "$1/" "$2/"`},
		{"cp", `cp -a "$1/." "$2/"`},
	} {
		t.Run(c.program, func(t *testing.T) {
			needs(t, c.program)
			if err := os.Mkdir(a.Path(c.program), 0o755); err != nil {
				t.Fatal(err)
			}
			if out, err := handsOn(t, "sh", "-ec", c.script, "sh", from, a.Path(c.program), archive); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, dir := range []string{a.Path(c.program), b.Path(c.program), v.InSource(c.program)} {
				if diff := lab.Output(t, "tar", "-C", dir, "-df", archive); diff != "" {
					t.Errorf("tar finds in %s: %s", dir, diff)
				}
			}
		})
	}
}

// handsOn runs a command whose programs hand files on to each other. If the kernel tells of a close
// later than lockfs waits for it, the next program rightly gets EBUSY: the command is run again.
func handsOn(t *testing.T, command string, args ...string) (string, error) {
	for again := 0; ; again++ {
		began := time.Now()
		out, err := exec.Command(command, args...).CombinedOutput()
		busy := strings.Contains(string(out), "Device or resource busy") && time.Since(began) >= lockmgr.DefaultCloseGrace
		if err == nil || !busy || again == 2 {
			return string(out), err
		}
		t.Logf("again: %v\n%s", err, out)
	}
}

// Programs that save a file by writing another and renaming it (sed -i, vim,
// most editors) leave, at each moment, the old file or the new one to readers on
// the other mount, and no lock.
func TestSaveByRename(t *testing.T) {
	lab.Over(t, testSaveByRename, lab.Local, lab.OverClients.ForLong(), lab.OverClientsThatDoubt, lab.OnNetworkVolume)
}

func testSaveByRename(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	version := func(n int) string { return strings.Repeat(fmt.Sprintf("version %d\n", n), 3000) }
	v.Write("f", version(0))
	versions := 40
	if v.Clients != nil { // programs start slowly in a guest, and a volume's server may be far
		versions = 8
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range versions {
			change := fmt.Sprintf("s/version %d$/version %d/", i, i+1)
			if i%2 == 0 {
				lab.Run(t, "sed", "-i", change, a.Path("f"))
				continue
			}
			script := `sed "$2" "$1" > "$1.swp"; sync "$1.swp"; ln -f "$1" "$1~"; mv "$1.swp" "$1"; rm "$1~"`
			if out, err := handsOn(t, "sh", "-ec", script, "sh", a.Path("f"), change); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
	}()
	defer func() { <-done }()
	last := 0
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		began := time.Now()
		got, err := os.ReadFile(b.Path("f"))
		// Replaced twice while the client looked; or the view has forgotten this open: lab.Forgotten.
		if errors.Is(err, unix.ESTALE) && (v.HasClients() || time.Since(began) >= time.Second) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := fmt.Sscanf(string(got), "version %d\n", &n); err != nil || string(got) != version(n) {
			t.Fatalf("a reader sees neither the old nor the new file: %d bytes, %v", len(got), err)
		}
		if n < last {
			t.Fatalf("a reader sees version %d after %d", n, last)
		}
		last = n
	}
	if last != versions {
		t.Errorf("the last version is %d, want %d", last, versions)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
	if names, err := os.ReadDir(v.Source); err != nil || len(names) != 2 { // and the marker
		t.Errorf("left in the volume: %v, %v", names, err)
	}
}

// Sqlite takes its database's lock for as long as it has it open.
func TestSqliteOnTwoMounts(t *testing.T) {
	lab.Over(t, testSqliteOnTwoMounts, lab.Local, lab.OverClients.ForLong(), lab.OnNetworkVolume)
}

func testSqliteOnTwoMounts(t *testing.T, on lab.Setup) {
	v := on.NewVolume(t, "--wait", "-1", "--name-wait", "1m") // sqlite makes its journal anew each time
	a, b := v.Mount("a"), v.Mount("b")
	lab.Run(t, "sqlite3", a.Path("db"), "CREATE TABLE t (x)")
	const workers, rounds = 2, 8
	lab.Everywhere(workers, func(m *lab.Mount, w int) {
		for i := range rounds {
			lab.Run(t, "sqlite3", "-cmd", ".timeout 60000", m.Path("db"), fmt.Sprintf("INSERT INTO t VALUES ('%s %d %d')", m.Name, w, i))
		}
	}, a, b)
	// The volume itself may have no locks of its own, as NFSv3 without a statd.
	out, err := exec.Command("sqlite3", "file:"+filepath.Join(v.Source, "db")+"?immutable=1", "PRAGMA integrity_check; SELECT count(DISTINCT x) FROM t").CombinedOutput()
	if want := fmt.Sprintf("ok\n%d\n", 2*workers*rounds); err != nil || string(out) != want {
		t.Errorf("sqlite says %q, %v; want %q", out, err, want)
	}
}
