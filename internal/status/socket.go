package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"
)

// answerTimeout bounds a daemon's answer; it asks its views for 2 s.
const answerTimeout = 5 * time.Second

// hidden is the prefix of a socket's name until it answers: one that refuses may be in the making.
const hidden = ".new-"

func socketsIn(stateDir string) string { return filepath.Join(stateDir, "status") }

// Listen answers on a socket in stateDir until stop is called.
func Listen(stateDir string, report func(context.Context) Daemon) (stop func(), err error) {
	dir := socketsIn(stateDir)
	if err := own(dir); err != nil {
		return nil, err
	}
	sweep(dir, inUse)
	id := uuid.NewString()[:8]
	path, made := filepath.Join(dir, id), filepath.Join(dir, hidden+id)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // it is renamed below
	if err := os.Rename(made, path); err != nil {
		return nil, errors.Join(err, l.Close(), os.Remove(made))
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(report(r.Context()))
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: answerTimeout}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(l)
	}()
	return func() {
		_ = os.Remove(path)
		_ = server.Close()
		<-ended
	}, nil
}

func own(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return fmt.Errorf("%s is not a directory of user %d", dir, os.Geteuid())
	}
	return os.Chmod(dir, 0o700)
}

// sweep removes the sockets in dir that nobody serves: those whose names match.
func sweep(dir string, match func(name string) bool) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if !match(e.Name()) || e.Type()&os.ModeSocket == 0 {
			continue
		}
		c, err := net.Dial("unix", path)
		if err == nil {
			c.Close()
		} else if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
}

func inUse(name string) bool { return !strings.HasPrefix(name, hidden) }

// SweepSockets removes the sockets of dead daemons in dir, also of those that died while they
// started, and dir if it is then empty. No daemon may be starting.
func SweepSockets(dir string) {
	sweep(dir, func(string) bool { return true })
	_ = os.Remove(dir)
}

// Sweep is SweepSockets for the sockets in stateDir.
func Sweep(stateDir string) { SweepSockets(socketsIn(stateDir)) }

// Ask returns the answers of all daemons in stateDir. A daemon that does not answer has an
// Error.
func Ask(ctx context.Context, stateDir string) ([]Daemon, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	entries, err := os.ReadDir(socketsIn(stateDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	answers := make([]*Daemon, len(entries))
	var wg sync.WaitGroup
	for i, e := range entries {
		if !inUse(e.Name()) || e.Type()&os.ModeSocket == 0 {
			continue
		}
		wg.Go(func() { answers[i] = ask(ctx, filepath.Join(socketsIn(stateDir), e.Name())) })
	}
	wg.Wait()
	var daemons []Daemon
	for _, d := range answers {
		if d != nil {
			daemons = append(daemons, *d)
		}
	}
	return daemons, nil
}

// ask returns the answer of the daemon at a socket, or nil if that is dead.
func ask(ctx context.Context, socket string) *Daemon {
	var peer atomic.Int64 // the dial may outlive this call
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
			if err == nil {
				peer.Store(int64(pidOf(c.(*net.UnixConn))))
			}
			return c, err
		},
	}}
	d, err := get(ctx, &client)
	switch {
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, os.ErrNotExist):
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return &Daemon{PID: int(peer.Load()), Views: []View{}, Error: fmt.Sprintf("it does not answer within %v", answerTimeout)}
	case err != nil:
		return &Daemon{PID: int(peer.Load()), Views: []View{}, Error: err.Error()}
	}
	return d
}

func get(ctx context.Context, client *http.Client) (*Daemon, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://lockfs/status", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, errors.New(resp.Status)
	}
	d := new(Daemon)
	return d, json.NewDecoder(resp.Body).Decode(d)
}

func pidOf(c *net.UnixConn) (pid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}
