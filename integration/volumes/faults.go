package main

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A test makes a fault by writing its name, a line, to the socket in $LOCKFS_TEST_LAB. It reads
// a line: "ok ANSWER", "none" if this kind has no such fault, or "error TEXT".
//
// Names are "freeze server", "thaw server", "kill server", "start server", "kill client N",
// "start client N" for a client from 0, "export below", which answers with a directory of the
// volume in which the server has another file system, "below", and "syncs", which answers
// with what kind.syncs counts, as JSON.

// fault lets the tests make a fault, or ask something.
func (l *lab) fault(name string, f func() (answer string, err error)) { l.faults[name] = f }

func (l *lab) socket() string { return filepath.Join(l.dir, "faults") }

// listen serves the tests' faults until stop.
func (l *lab) listen() (stop func(), err error) {
	s, err := net.Listen("unix", l.socket())
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := s.Accept()
			if err != nil {
				return
			}
			l.answer(conn) // one after the other
		}
	}()
	return func() { s.Close() }, nil
}

func (l *lab) answer(conn net.Conn) {
	defer conn.Close()
	name, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return
	}
	f := l.faults[strings.TrimSpace(name)]
	if f == nil {
		fmt.Fprintln(conn, "none")
		return
	}
	answer, err := f()
	if err != nil {
		fmt.Fprintln(conn, "error", strings.ReplaceAll(err.Error(), "\n", " | "))
		return
	}
	fmt.Fprintln(conn, "ok", answer)
}

// client lets the tests kill a client that runs in user space, and mount it again.
func (l *lab) client(n int, s *server, dir string) {
	l.fault(fmt.Sprint("kill client ", n), func() (string, error) {
		s.kill()
		return "", nil
	})
	l.fault(fmt.Sprint("start client ", n), func() (string, error) {
		_ = unix.Unmount(dir, unix.MNT_DETACH) // of the dead one
		if err := s.start(); err != nil {
			return "", err
		}
		return "", l.until("the client is mounted", func() bool { return isMounted(dir) }, s)
	})
}

// servers lets the tests stop servers, and let them go on.
func (l *lab) servers(servers ...*server) {
	for name, sig := range map[string]unix.Signal{"freeze server": unix.SIGSTOP, "thaw server": unix.SIGCONT} {
		l.fault(name, func() (string, error) {
			for _, s := range servers {
				if err := s.signal(sig); err != nil {
					return "", err
				}
			}
			return "", nil
		})
	}
}
