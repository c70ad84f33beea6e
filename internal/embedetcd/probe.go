package embedetcd

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// probeTimeout: the server may have been killed after it accepted.
const probeTimeout = time.Second

// probe asks etcd whether it serves a linearizable read now. A full quota does
// not count: locks can still be released.
func probe(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/health?exclude=NOSPACE", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 256))
		return fmt.Errorf("etcd is not ready: %s", body)
	}
	return nil
}
