package embedetcd

import (
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// lend returns what s lends, as the daemon of an upgrade gets it.
func lend(t *testing.T, s *Server) (files []*os.File) {
	t.Helper()
	for _, fd := range s.Lend() {
		own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(own), "lent"))
	}
	return files
}

// A process that is lent goes on when the one that started it ends, and ends with the last one that
// has it.
func TestLend(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	servers := []*Server{start(t, dir), start(t, dir), start(t, dir)}
	c := connect(t, servers[2])
	lease, rev := holdKey(t, c)
	pid := etcdPID(t, dir)
	if fds := servers[1].Lend(); fds != nil {
		t.Errorf("who does not serve lends %v", fds)
	}
	for i, s := range servers[:2] {
		given := lend(t, s)
		s.GoOn()
		for _, f := range given { // given up
			f.Close()
		}
		given = lend(t, s)
		s.Leave()
		next := servers[i+1]
		next.Adopt(given)
		s.Close()
		eventually(t, "the next one serves", func() error {
			if next.Lend() == nil {
				return errHeld
			}
			next.GoOn()
			return nil
		})
		checkHeld(t, c, lease, rev)
		if now := etcdPID(t, dir); now != pid {
			t.Errorf("served by %d, before by %d", now, pid)
		}
	}
	// Who has it starts another one when it ends.
	timeTakeover(t, servers[2], pid, func() {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	})
	checkHeld(t, c, lease, rev)
}

// Who is lent a process, and ends, ends it.
func TestLentProcessEnds(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	first, second := start(t, dir), start(t, dir)
	second.Adopt(lend(t, first))
	first.Leave()
	first.Close()
	second.Close()
	eventually(t, "it has ended", func() error {
		if len(etcdPIDs(t, dir)) > 0 {
			return errHeld
		}
		return nil
	})
}

// A process that was lent in vain ends with the one that started it, and its log is read.
func TestLentInVain(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	s := start(t, dir)
	for _, f := range lend(t, s) {
		f.Close()
	}
	s.GoOn()
	s.Close()
	if pids := etcdPIDs(t, dir); len(pids) != 0 {
		t.Errorf("after Close: etcd processes %v", pids)
	}
}
