package checkvolume

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const answerWait = 5 * time.Second // for the other machine

// Local tries the rules over two clients on this machine, and prints to out.
func Local(ctx context.Context, a, b *Site, out io.Writer) error {
	defer b.end(unix.SIGTERM)
	return between(ctx, a, b, out)
}

// WithPeer tries the rules over a client here and the Site that serves at address,
// HOST:PORT.
func WithPeer(ctx context.Context, a *Site, address string, out io.Writer) error {
	if err := answers(ctx, address); err != nil {
		return err
	}
	a.Endpoint = "http://" + address
	b := peer(address)
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*endWait)
		defer cancel()
		b.do(ctx, call{Do: "end view"})
	}()
	return between(ctx, a, b, out)
}

// answers fails if nobody listens at address: the view here would report that as etcd's failure.
func answers(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("no check answers at %s: run 'lockfs check-volume --listen %[1]s DIR' on the other machine first (%w)", address, err)
	}
	return conn.Close()
}

// between makes the check's directory on the volume, and removes it.
func between(ctx context.Context, a *Site, b party, out io.Writer) error {
	dir, err := os.MkdirTemp(a.Dir, "lockfs-check-")
	if err != nil {
		return err
	}
	defer func() {
		if err := removeAll(dir); err != nil {
			fmt.Fprintln(out, "left on the volume:", err)
		}
	}()
	defer a.end(unix.SIGTERM)
	for _, p := range []party{a, b} {
		if r := p.do(ctx, call{Do: "mount view", Path: filepath.Base(dir)}); r.failed() {
			return r.err()
		}
	}
	began := time.Now()
	err = run(ctx, a, b, out)
	fmt.Fprintf(out, "%.0f s\n", time.Since(began).Seconds())
	return err
}

// removeAll tries again: a client may keep files that another client had open.
func removeAll(dir string) (err error) {
	for range 10 {
		if err = os.RemoveAll(dir); err == nil {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return err
}
