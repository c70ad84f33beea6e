package programs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/lockfs/lockfs/integration/lab"
)

// postgres is a database cluster of user nobody, without root's rights.
type postgres struct {
	t        *testing.T
	bin      string
	sockets  string
	uid, gid uint32
}

func newPostgres(t *testing.T) *postgres {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // Debian keeps it out of PATH
	if path, err := exec.LookPath("initdb"); err == nil && len(found) == 0 {
		found = []string{path}
	}
	if len(found) == 0 {
		t.Skip("PostgreSQL is not installed")
	}
	nobody, err := osuser.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	uid, _ := strconv.Atoi(nobody.Uid)
	gid, _ := strconv.Atoi(nobody.Gid)
	p := &postgres{t: t, bin: filepath.Dir(found[len(found)-1]), uid: uint32(uid), gid: uint32(gid)}
	p.sockets, err = os.MkdirTemp("/tmp", "lfs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(p.sockets) })
	p.owns(p.sockets)
	return p
}

func (p *postgres) owns(path string) {
	p.t.Helper()
	if err := os.Chown(path, int(p.uid), int(p.gid)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.sockets
	cmd.Env = append(os.Environ(), "PGHOST="+p.sockets, "PGDATABASE=postgres", "PGUSER=nobody", "LC_ALL=C", "HOME="+p.sockets)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: p.uid, Gid: p.gid}}
	return cmd
}

func (p *postgres) run(program string, args ...string) string {
	p.t.Helper()
	out, err := p.command(program, args...).CombinedOutput()
	if err != nil {
		p.t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// ask returns the answer to a query, which is a number.
func (p *postgres) ask(query string) int {
	p.t.Helper()
	n, err := strconv.Atoi(p.run("psql", "-XAtq", "-c", query))
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// start serves the cluster in dir, and returns when it takes queries.
func (p *postgres) start(dir string) *exec.Cmd {
	p.t.Helper()
	server := p.command("postgres", "-D", dir, "-k", p.sockets, "-c", "listen_addresses=", "-c", "shared_buffers=8MB",
		"-c", "dynamic_shared_memory_type=mmap") // below dir: what is killed leaves nothing in /dev/shm
	var log lab.LogBuffer
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		p.kill(server)
		if p.t.Failed() {
			p.t.Logf("log of postgres:\n%s", log.String())
		}
	})
	lab.Eventually(p.t, "postgres takes queries", func() bool { return p.command("pg_isready", "-q").Run() == nil })
	p.dropSegment(dir)
	return server
}

// dropSegment has the kernel drop the server's System V segment with its last process,
// which a server that is killed cannot do.
func (p *postgres) dropSegment(dir string) {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "postmaster.pid"))
	if err != nil {
		p.t.Fatal(err)
	}
	var key, id int
	lines := strings.Split(string(b), "\n")
	if len(lines) < 7 {
		p.t.Fatalf("postmaster.pid has no segment: %q", b)
	}
	if _, err := fmt.Sscan(lines[6], &key, &id); err != nil {
		p.t.Fatalf("postmaster.pid has no segment: %q: %v", b, err)
	}
	if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends a server and its children with SIGKILL, unless it has ended.
func (p *postgres) kill(server *exec.Cmd) {
	if server.ProcessState != nil {
		return
	}
	pid := server.Process.Pid
	_ = unix.Kill(pid, unix.SIGSTOP) // no child is born behind our back
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	_ = unix.Kill(pid, unix.SIGKILL)
	for _, field := range bytes.Fields(children) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			_ = unix.Kill(child, unix.SIGKILL)
		}
	}
	_ = server.Wait()
}

// A database is killed with all its processes in the midst of its transactions
// and goes on from another mount: each transaction that was confirmed is there,
// and its tables and indexes are sound.
func TestPostgresMovesToAnotherMount(t *testing.T) {
	t.Parallel()
	p := newPostgres(t)
	v := lab.NewVolume(t, "--scope", "node", "--wait", "-1")
	a, b := v.Mount("a"), v.Mount("b")
	if err := errors.Join(os.Chmod(v.Dir, 0o755), os.Mkdir(a.Path("pg"), 0o700)); err != nil {
		t.Fatal(err)
	}
	p.owns(a.Path("pg"))
	p.run("initdb", "-D", a.Path("pg/data"), "-A", "trust", "--no-sync")
	server := p.start(a.Path("pg/data"))
	p.run("pgbench", "-q", "-i", "-s", "1")
	load := p.command("pgbench", "-n", "-c", "4", "-T", "600", "-l", "--log-prefix", filepath.Join(p.sockets, "confirmed"))
	if err := load.Start(); err != nil {
		t.Fatal(err)
	}
	lab.Eventually(t, "there are transactions", func() bool { return p.ask("SELECT count(*) FROM pgbench_history") > 200 })
	wal := p.run("psql", "-XAtq", "-c", "SELECT pg_walfile_name(pg_current_wal_lsn())")
	lab.NewAgent(t).Fails(lab.Call{Op: "open", Path: b.Path("pg/data/pg_wal/" + wal), Flags: unix.O_RDWR | unix.O_NONBLOCK}, unix.EAGAIN)
	p.kill(server)
	_ = load.Wait() // its server is gone
	// A server whose open waits for a lock is interrupted by its own signals, and gives up (EINTR).
	lab.Eventually(t, "the locks of the killed one are gone", func() bool { return len(v.LS()) == 0 })

	server = p.start(b.Path("pg/data"))
	confirmed := 0
	logs, _ := filepath.Glob(filepath.Join(p.sockets, "confirmed*"))
	for _, name := range logs {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		confirmed += bytes.Count(b, []byte("\n"))
	}
	if n := p.ask("SELECT count(*) FROM pgbench_history"); n < confirmed || confirmed < 100 {
		t.Errorf("of %d transactions that were confirmed %d are there", confirmed, n)
	}
	sum := p.ask("SELECT sum(delta) FROM pgbench_history")
	for _, table := range []string{"accounts", "tellers", "branches"} {
		if n := p.ask(fmt.Sprintf("SELECT sum(%sbalance) FROM pgbench_%s", table[:1], table)); n != sum {
			t.Errorf("the balance of all %s is %d, want %d", table, n, sum)
		}
	}
	p.run("pg_amcheck", "--install-missing", "--heapallindexed", "--parent-check", "postgres")
	p.run("pgbench", "-n", "-c", "2", "-t", "20")
	if err := server.Process.Signal(unix.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := server.Wait(); err != nil {
		t.Errorf("postgres ends with %v", err)
	}
	lab.Eventually(t, "nothing stays locked", func() bool { return len(v.LS()) == 0 })
}
