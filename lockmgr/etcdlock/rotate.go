package etcdlock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/credentials"
)

// A client lives for months. Its certificates and passwords change meanwhile.

// rotatingTLS reads the CA for each connection, as etcd's package does the client certificate.
type rotatingTLS struct {
	credentials.TransportCredentials // as first loaded
	load                             func() (*tls.Config, error)
}

func newRotatingTLS(load func() (*tls.Config, error)) (*rotatingTLS, error) {
	cfg, err := load()
	if err != nil {
		return nil, err
	}
	return &rotatingTLS{credentials.NewTLS(cfg), load}, nil
}

// ClientHandshake implements credentials.TransportCredentials.
func (r *rotatingTLS) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := r.load()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Clone implements credentials.TransportCredentials.
func (r *rotatingTLS) Clone() credentials.TransportCredentials {
	return &rotatingTLS{r.TransportCredentials.Clone(), r.load}
}

// rotatingLogin reads the password file again for each login.
type rotatingLogin struct {
	clientv3.Auth
	file string
}

// Authenticate implements clientv3.Auth.
func (r rotatingLogin) Authenticate(ctx context.Context, name, _ string) (*clientv3.AuthenticateResponse, error) {
	password, err := readPassword(r.file)
	if err != nil {
		return nil, err
	}
	return r.Auth.Authenticate(ctx, name, password)
}

func readPassword(file string) (string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the password: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}
