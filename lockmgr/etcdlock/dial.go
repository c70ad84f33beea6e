package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockfs/lockfs/internal/retry"
)

// DialConfig configures Dial.
type DialConfig struct {
	// Endpoints are the cluster's URLs, such as https://10.0.0.1:2379 or unix:///run/etcd.sock.
	Endpoints []string

	// CAFile verifies the servers, CertFile and KeyFile authenticate the client. All are PEM, and
	// are read again for each connection. Without CAFile, the system's roots verify the servers.
	CAFile, CertFile, KeyFile string

	// Username and Password log in, if etcd has authentication enabled.
	Username, Password string

	// PasswordFile replaces Password. It is read again for each login: etcd's tokens expire.
	PasswordFile string

	// DialTimeout bounds the wait for the first answer. Zero: 5 s.
	DialTimeout time.Duration

	// Logger gets messages about the connection. Zero: discarded.
	Logger *slog.Logger
}

// gRPC pings a silent connection at most every 10 s, and drops it after keepAliveTimeout without
// an answer. Unacknowledged data has the same timeout (TCP_USER_TIMEOUT), and a renewal notices
// that first. members handles acknowledged requests without an answer.
const (
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 3 * time.Second
)

// reconnect replaces gRPC's backoff of 1 s to 2 min, which is longer than a lease.
var reconnect = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
	MinConnectTimeout: keepAliveTimeout,
}

// Dial returns when a majority of etcd has answered. Its errors are one line, with the endpoints.
func Dial(ctx context.Context, cfg DialConfig) (*clientv3.Client, error) {
	if cfg.DialTimeout == 0 {
		cfg.DialTimeout = 5 * time.Second
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	endpoints := strings.Join(cfg.Endpoints, ",")
	client, err := dial(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd at %q: %w", endpoints, err)
	}
	cfg.Logger.Info("connected to etcd", "endpoints", endpoints)
	return client, nil
}

func dial(ctx context.Context, cfg DialConfig) (*clientv3.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	conf := clientv3.Config{
		Endpoints:            cfg.Endpoints,
		DialTimeout:          cfg.DialTimeout,
		DialKeepAliveTime:    keepAliveTime,
		DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions:          append(newMembers(len(cfg.Endpoints), cfg.Logger).options(), grpc.WithConnectParams(reconnect), grpc.WithChainUnaryInterceptor(once)),
		Logger:               zap.NewNop(), // its errors come back to us
	}
	if cfg.CAFile != "" || cfg.CertFile != "" || cfg.KeyFile != "" {
		files := transport.TLSInfo{TrustedCAFile: cfg.CAFile, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile}
		if plain(cfg.Endpoints) {
			return nil, errors.New("a CA, a certificate and a key are for https endpoints: write https://, or drop them")
		}
		creds, err := newRotatingTLS(files.ClientConfig)
		if err != nil {
			return nil, err
		}
		conf.DialOptions = append(conf.DialOptions, grpc.WithTransportCredentials(creds))
	}
	client, err := connect(ctx, conf)
	if cfg.Username == "" {
		return client, err
	}
	// clientv3.New logs in, and on a dead connection fails with a bare timeout. So the first
	// connection, without a login, finds the real error.
	switch {
	case err == nil:
		if err := client.Close(); err != nil {
			return nil, err
		}
	case !errors.Is(err, rpctypes.ErrUserEmpty):
		return nil, err
	}
	conf.Username, conf.Password = cfg.Username, cfg.Password
	if cfg.PasswordFile == "" {
		return connect(ctx, conf)
	}
	if conf.Password, err = readPassword(cfg.PasswordFile); err != nil {
		return nil, err
	}
	if client, err = connect(ctx, conf); err != nil {
		return nil, err
	}
	client.Auth = rotatingLogin{client.Auth, cfg.PasswordFile}
	return client, nil
}

// plain reports whether the endpoints use no TLS: the first decides for all, as in clientv3.
func plain(endpoints []string) bool {
	return len(endpoints) == 0 || strings.HasPrefix(endpoints[0], "http:") || strings.HasPrefix(endpoints[0], "unix:")
}

func connect(ctx context.Context, conf clientv3.Config) (*clientv3.Client, error) {
	client, err := clientv3.New(conf)
	if err != nil {
		return nil, err
	}
	if err := probe(ctx, client); err != nil {
		_ = client.Close() // unused so far
		return nil, err
	}
	return client, nil
}

// probe repeats a linearizable read until it is answered. 'Permission denied' is an answer too.
// probe bypasses clientv3, which waits for a connection and hides why there is none.
func probe(ctx context.Context, client *clientv3.Client) error {
	kv := pb.NewKVClient(client.ActiveConnection())
	var r retry.Retrier
	var why error
	for {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte("/lockfs/"), CountOnly: true})
		switch {
		case err == nil, status.Code(err) == codes.PermissionDenied:
			return nil
		case refused(err):
			return reason(err)
		case why == nil || ctx.Err() == nil:
			why = reason(err)
		}
		if err := r.Pause(ctx); err != nil {
			return fmt.Errorf("%w: %w", err, why)
		}
	}
}

// reason is etcd's own error, or the first line of gRPC's, which can have several.
func reason(err error) error {
	if err := rpctypes.Error(err); errors.As(err, new(rpctypes.EtcdError)) {
		return err
	}
	line, _, _ := strings.Cut(status.Convert(err).Message(), "\n")
	return errors.New(line)
}
